import { useState } from "preact/hooks";

import { audit, type Problem } from "../api/client";
import type { AuditSummary } from "../api/schema";
import { moment } from "../lib/format";
import { visible, visibleLine } from "../lib/inert";
import { asProblem, useLoaded } from "../lib/load";
import { hrefOf } from "../lib/route";
import { Field, ProblemNote, Status } from "../ui/parts";

interface Filter {
  q: string;
  language: string;
  status: string;
  caller: string;
  from: string;
  to: string;
}

const NOTHING: Filter = { q: "", language: "", status: "", caller: "", from: "", to: "" };

const FIELDS: Array<[keyof Filter, string, string]> = [
  ["language", "Language", "python"],
  ["status", "Status", "exited"],
  ["caller", "Caller", "ci"],
  ["from", "From", "2h"],
  ["to", "Until", "2026-11-17"],
];

/** Who ran what, with search; and whether the record is whole. */
export function Audit() {
  const [draft, setDraft] = useState(NOTHING);
  const [filter, setFilter] = useState(NOTHING);
  const search = (event: Event) => {
    event.preventDefault();
    setFilter({ ...draft });
  };
  const change = (name: keyof Filter) => (event: { currentTarget: HTMLInputElement }) =>
    setDraft((before) => ({ ...before, [name]: event.currentTarget.value }));
  return (
    <section aria-labelledby="audit-title">
      <h2 id="audit-title">Audit log</h2>
      <Chain />
      <form class="bar" role="search" onSubmit={search}>
        <Field label="Search">
          <input type="search" value={draft.q} onInput={change("q")} placeholder="words in code, output or error" />
        </Field>
        {FIELDS.map(([name, label, example]) => (
          <Field key={name} label={label}>
            <input type="text" size={9} value={draft[name]} onInput={change(name)} placeholder={example} spellcheck={false} />
          </Field>
        ))}
        <button type="submit" class="primary">
          Search
        </button>
      </form>
      <Records key={JSON.stringify(filter)} filter={filter} />
    </section>
  );
}

/** Whether anything was changed, removed or inserted. */
function Chain() {
  const { value, problem, reload } = useLoaded(audit.verify, "verify");
  return (
    <div class="card chain">
      <p role="status">
        {!value && !problem && <span class="faint">Reading the whole log …</span>}
        {value?.ok && (
          <>
            <span class="badge good">whole</span> {value.records} records, {value.first ?? "–"} to {value.last ?? "–"}. The last
            has the hash <code>{value.hash?.slice(0, 16) ?? "–"}</code>.
          </>
        )}
        {value?.flaw && (
          <>
            <span class="badge bad">{value.flaw.kind}</span> record {value.flaw.seq}: {visibleLine(value.flaw.message)}
          </>
        )}
      </p>
      <ProblemNote problem={problem} />
      <button type="button" class="small" onClick={reload}>
        Verify again
      </button>
    </div>
  );
}

function Records({ filter }: { filter: Filter }) {
  const first = useLoaded(() => audit.list({ ...filter }), JSON.stringify(filter));
  const [more, setMore] = useState<{ records: AuditSummary[]; cursor: string | null } | null>(null);
  const [failure, setFailure] = useState<Problem | null>(null);
  const cursor = more ? more.cursor : (first.value?.next_cursor ?? null);
  const records = [...(first.value?.records ?? []), ...(more?.records ?? [])];
  const load = async () => {
    try {
      const page = await audit.list({ ...filter, cursor: cursor ?? "" });
      setMore((before) => ({ records: [...(before?.records ?? []), ...page.records], cursor: page.next_cursor }));
    } catch (cause) {
      setFailure(asProblem(cause));
    }
  };
  return (
    <>
      <ProblemNote problem={failure ?? first.problem} />
      {first.value && records.length === 0 && <p class="faint">No record matches.</p>}
      {records.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Records, a table">
          <table>
            <thead>
              <tr>
                {["Record", "Time", "Caller", "Through", "Language", "Status", "Code"].map((name) => (
                  <th scope="col" key={name}>
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {records.map((record) => (
                <Row key={record.seq} record={record} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {cursor && (
        <button type="button" onClick={() => void load()}>
          More
        </button>
      )}
    </>
  );
}

function Row({ record }: { record: AuditSummary }) {
  return (
    <tr>
      <td>
        <a href={hrefOf("audit", String(record.seq))}>{record.seq}</a>
      </td>
      <td>{moment(record.at)}</td>
      <td>{visibleLine(record.caller)}</td>
      <td>{visibleLine(record.surface)}</td>
      <td>{visibleLine(record.language)}</td>
      <td>
        <Status status={record.status} exitCode={record.exit_code} />
      </td>
      <td>
        <pre class="excerpt">{visible(record.code ?? record.error ?? "")}</pre>
      </td>
    </tr>
  );
}
