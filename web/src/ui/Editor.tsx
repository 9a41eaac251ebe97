import { closeBrackets } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { bracketMatching, indentOnInput, indentUnit } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { useEffect, useRef } from "preact/hooks";

import type { Finding } from "../api/schema";
import { editorTheme } from "./editor-theme";
import { diagnostics } from "./findings";
import { highlighting } from "./languages";

interface Props {
  label: string;
  language: string;
  /** What is there at first. To replace it later, give the editor another key. */
  code: string;
  /** Those of the whole run; the ones that are elsewhere are not marked here. */
  findings: Finding[];
  /** What the code is, if it is not that of the run itself: the name that findings have for it. */
  within?: string;
  onChange?: (code: string) => void;
}

/** Code to write, or only to read if nobody listens for changes. */
export function Editor({ label, language, code, findings, within, onChange }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const languages = useRef(new Compartment());
  const changed = useRef(onChange);
  changed.current = onChange;

  useEffect(() => {
    if (!place.current) return undefined;
    view.current = open(place.current, label, code, languages.current, changed);
    return () => view.current?.destroy();
  }, []);

  useEffect(() => {
    view.current?.dispatch({ effects: languages.current.reconfigure(highlighting(language)) });
  }, [language]);

  useEffect(() => {
    const { current } = view;
    const own = findings.filter((finding) => (finding.within ?? undefined) === within);
    if (current) current.dispatch(setDiagnostics(current.state, diagnostics(own, current.state.doc)));
  }, [findings]);

  return <div class="editor" ref={place} />;
}

function open(
  place: HTMLElement,
  label: string,
  code: string,
  languages: Compartment,
  changed: { current: ((code: string) => void) | undefined },
): EditorView {
  // Within a shadow root, CodeMirror has style sheets of its own without a <style> element, which the policy forbids.
  const root = place.shadowRoot ?? place.attachShadow({ mode: "open", delegatesFocus: true });
  const writable = changed.current !== undefined;
  const state = EditorState.create({
    doc: code,
    extensions: [
      lineNumbers(),
      lintGutter(),
      highlightSpecialChars(),
      highlightActiveLineGutter(),
      highlightActiveLine(),
      history(),
      drawSelection(),
      indentOnInput(),
      indentUnit.of("    "),
      bracketMatching(),
      closeBrackets(),
      keymap.of([...defaultKeymap.filter((binding) => binding.key !== "Mod-Enter"), ...historyKeymap, indentWithTab]),
      EditorState.readOnly.of(!writable),
      EditorView.contentAttributes.of({ "aria-label": label }),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) changed.current?.(update.state.doc.toString());
      }),
      languages.of([]),
      editorTheme,
    ],
  });
  return new EditorView({ state, parent: root, root });
}
