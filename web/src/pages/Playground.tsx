import { useEffect, useState } from "preact/hooks";

import { host, scan } from "../api/client";
import type { Finding } from "../api/schema";
import { storeDraft, storedDraft } from "../lib/draft";
import { useLoaded } from "../lib/load";
import { EMPTY, requestOf, type Form } from "../lib/request";
import { useRun } from "../lib/run";
import { SAMPLES } from "../lib/samples";
import { useShortcuts } from "../lib/shortcuts";
import { Editor } from "../ui/Editor";
import { Field, FindingList } from "../ui/parts";
import { Options } from "./Options";
import { RunPanel } from "./RunPanel";

/** How long to wait for more typing before the code is scanned. */
const PAUSE_MS = 500;

export function Playground() {
  const [form, setForm] = useState<Form>(opening);
  // How often something other than typing has replaced the code.
  const [replaced, setReplaced] = useState(0);
  const languages = useLoaded(host.languages, "languages");
  const control = useRun();
  const findings = useFindings(form.language, form.code);
  const change = (part: Partial<Form>) => setForm((before) => ({ ...before, ...part }));
  const isBusy = control.view.phase === "waiting" || control.view.phase === "running";
  const run = () => control.start(requestOf(form));

  useEffect(() => storeDraft({ language: form.language, code: form.code }), [form.language]);
  useShortcuts({ "Mod+Enter": run, "Mod+.": control.cancel });

  const choose = (language: string) => {
    const untouched = form.code.trim() === "" || form.code === SAMPLES[form.language];
    if (untouched) setReplaced(replaced + 1);
    change(untouched ? { language, code: SAMPLES[language] ?? "" } : { language });
  };

  return (
    <div class="playground">
      <h2 class="hidden">Playground</h2>
      <section class="source" aria-label="Program">
        <div class="bar">
          <Field label="Language">
            <select value={form.language} onChange={(event) => choose(event.currentTarget.value)}>
              {(languages.value?.languages ?? [{ name: form.language, available: true }]).map(({ name, available }) => (
                <option key={name} value={name} disabled={!available}>
                  {available ? name : `${name} (not installed)`}
                </option>
              ))}
            </select>
          </Field>
          <button type="button" class="primary" onClick={run} aria-keyshortcuts="Control+Enter">
            Run <kbd>Ctrl ⏎</kbd>
          </button>
          <button type="button" onClick={control.cancel} disabled={!isBusy} aria-keyshortcuts="Control+.">
            Cancel
          </button>
        </div>
        <Editor
          key={replaced}
          label="Code"
          language={form.language}
          code={form.code}
          findings={findings}
          onChange={(code) => {
            storeDraft({ language: form.language, code });
            change({ code });
          }}
        />
        <FindingList findings={findings} />
        <Options form={form} change={change} />
      </section>
      <RunPanel view={control.view} />
    </div>
  );
}

function opening(): Form {
  const draft = storedDraft();
  return draft ? { ...EMPTY, ...draft } : { ...EMPTY, code: SAMPLES[EMPTY.language] ?? "" };
}

/** What a scan says about the code, a moment after the last change. */
function useFindings(language: string, code: string): Finding[] {
  const [findings, setFindings] = useState<Finding[]>([]);
  useEffect(() => {
    const controller = new AbortController();
    const timer = setTimeout(() => {
      // A scan that fails says nothing; the run itself reports what is wrong.
      scan(language, code, controller.signal).then((result) => setFindings(result.findings)).catch(() => setFindings([]));
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [language, code]);
  return findings;
}
