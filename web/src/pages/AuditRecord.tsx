import { audit } from "../api/client";
import type { AuditRecord as Record } from "../api/schema";
import { bytes, millis, moment } from "../lib/format";
import { visible, visibleLine } from "../lib/inert";
import { useLoaded } from "../lib/load";
import { hrefOf } from "../lib/route";
import { Editor } from "../ui/Editor";
import { Denied } from "../ui/Network";
import { Facts, FindingList, ProblemNote, Status } from "../ui/parts";
import { traffic } from "../ui/Result";

/** Everything that the log has about one attempt. */
export function AuditRecord({ id }: { id: string }) {
  const { value, problem } = useLoaded(() => audit.find(id), id);
  return (
    <section aria-labelledby="record-title">
      <h2 id="record-title">Record {visibleLine(id)}</h2>
      <p>
        <a href={hrefOf("audit")}>Audit log</a>
      </p>
      <ProblemNote problem={problem} />
      {value && <Details record={value} />}
    </section>
  );
}

function Details({ record }: { record: Record }) {
  const { findings } = record;
  return (
    <>
      <p>
        <Status status={record.status} exitCode={record.exit_code} /> <code>{record.id}</code>
      </p>
      {record.error && <p class="problem">{visible(record.error)}</p>}
      <Facts
        facts={[
          ["Time", moment(record.at)],
          ["Caller", visibleLine(record.caller)],
          ["Through", visibleLine([record.surface, record.peer].filter(Boolean).join(" from "))],
          ["Language", visibleLine(record.language)],
          ["Backend", visibleLine(record.backend ?? "–")],
          ["Network", visibleLine(record.network ?? "–")],
          ...traffic(record.usage),
          ["Exit code", record.exit_code ?? "–"],
          ["Wall clock", millis(record.usage?.wall_ms)],
          ["Memory, peak", bytes(record.usage?.memory_peak_bytes)],
          ["Decision", visibleLine(decisionOf(record))],
          ["Guarantees waived", visibleLine(record.waived.join(", ") || "none")],
          ["Secrets taken out", record.redactions],
        ]}
      />
      {record.code !== null && <Editor key={record.id} label="Code" language={record.language} code={record.code} findings={findings} />}
      <FindingList findings={findings} />
      <Denied denied={record.network_denied ?? []} />
      <Text title="Standard output" text={record.stdout} size={record.stdout_bytes} />
      <Text title="Standard error" text={record.stderr} size={record.stderr_bytes} />
      <Facts
        facts={[
          ["Hash of this record", <code>{record.hash}</code>],
          ["Hash of the one before", <code>{record.previous}</code>],
        ]}
      />
    </>
  );
}

function decisionOf({ decision }: Record): string {
  return decision ? `${decision.action} by ${decision.by}: ${decision.reason}` : "–";
}

function Text({ title, text, size }: { title: string; text: string | null; size: number | null }) {
  if (!text) return null;
  return (
    <>
      <h3>
        {title} <span class="faint">{bytes(size)}</span>
      </h3>
      <pre class="output" dir="ltr" tabIndex={0} role="region" aria-label={title}>
        {visible(text)}
      </pre>
    </>
  );
}
