import { host } from "../api/client";
import { bytes } from "../lib/format";
import { visibleLine } from "../lib/inert";
import { useLoaded } from "../lib/load";
import { attach, type Form } from "../lib/request";
import { Field } from "../ui/parts";

interface Props {
  form: Form;
  change: (part: Partial<Form>) => void;
}

type TextName = Exclude<keyof Form, "files">;

const LIMITS: Array<[TextName, string, string]> = [
  ["timeout", "Timeout, s", "10"],
  ["memory", "Memory, MiB", "256"],
  ["cpus", "CPUs", "1"],
  ["pids", "Processes", "50"],
  ["disk", "Disk, MiB", "64"],
];

/** Everything of a run but its code. */
export function Options({ form, change }: Props) {
  const text = (name: TextName) => ({
    value: form[name],
    onInput: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
  return (
    <div class="options">
      <details>
        <summary>Limits, network and backend</summary>
        <div class="grid">
          {LIMITS.map(([name, label, usual]) => (
            <Field key={name} label={label}>
              <input type="number" min="0" step="any" placeholder={usual} {...text(name)} />
            </Field>
          ))}
          <Network form={form} change={change} />
          <Backends form={form} change={change} />
        </div>
      </details>
      <details>
        <summary>Input: stdin, arguments, environment</summary>
        <Field label="Standard input">
          <textarea rows={3} spellcheck={false} {...text("stdin")} />
        </Field>
        <Field label="Arguments, one on each line">
          <textarea rows={2} spellcheck={false} {...text("args")} />
        </Field>
        <Field label="Environment, NAME=value on each line">
          <textarea rows={2} spellcheck={false} {...text("env")} />
        </Field>
      </details>
      <details>
        <summary>Files{form.files.length > 0 ? ` (${form.files.length})` : ""}</summary>
        <Attachments form={form} change={change} />
        <Field label="Files to bring back, as patterns">
          <input type="text" spellcheck={false} {...text("collect")} />
        </Field>
      </details>
    </div>
  );
}

const HOSTS = "allow:";

function Network({ form, change }: Props) {
  const some = form.network.startsWith(HOSTS);
  return (
    <>
      <Field label="Network">
        <select value={some ? HOSTS : form.network} onChange={(event) => change({ network: event.currentTarget.value })}>
          <option value="none">none</option>
          <option value={HOSTS}>some hosts</option>
          <option value="full">full</option>
        </select>
      </Field>
      {some && (
        <Field label="Hosts, as name:port">
          <input
            type="text"
            spellcheck={false}
            placeholder="*.example.org:443, 10.1.0.0/16"
            value={form.network.slice(HOSTS.length)}
            onInput={(event) => change({ network: HOSTS + event.currentTarget.value })}
          />
        </Field>
      )}
    </>
  );
}

function Backends({ form, change }: Props) {
  const { value } = useLoaded(host.backends, "backends");
  return (
    <Field label="Backend">
      <select value={form.backend} onChange={(event) => change({ backend: event.currentTarget.value })}>
        <option value="auto">auto</option>
        {(value?.backends ?? []).map(({ name, ready }) => (
          <option key={name} value={name} disabled={!ready}>
            {ready ? name : `${name} (not ready)`}
          </option>
        ))}
      </select>
    </Field>
  );
}

function Attachments({ form, change }: Props) {
  const add = async (list: FileList | null) => {
    const added = await Promise.all([...(list ?? [])].map(attach));
    const names = new Set(added.map((file) => file.path));
    change({ files: [...form.files.filter((file) => !names.has(file.path)), ...added] });
  };
  const remove = (path: string) => change({ files: form.files.filter((file) => file.path !== path) });
  return (
    <>
      <Field label="Files for the working directory">
        <input
          type="file"
          multiple
          onChange={(event) => {
            void add(event.currentTarget.files);
            event.currentTarget.value = "";
          }}
        />
      </Field>
      <ul class="attached">
        {form.files.map((file) => (
          <li key={file.path}>
            <bdi>{visibleLine(file.path)}</bdi> <span class="faint">{bytes(file.size)}</span>{" "}
            <button type="button" class="small" onClick={() => remove(file.path)} aria-label={`Remove ${visibleLine(file.path)}`}>
              Remove
            </button>
          </li>
        ))}
      </ul>
    </>
  );
}
