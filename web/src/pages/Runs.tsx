import { useEffect, useState } from "preact/hooks";

import { runs } from "../api/client";
import type { RunSummary } from "../api/schema";
import { moment } from "../lib/format";
import { asProblem, useLoaded } from "../lib/load";
import { hrefOf } from "../lib/route";
import { useRun } from "../lib/run";
import { Field, ProblemNote, Status } from "../ui/parts";
import { RunPanel } from "./RunPanel";

const STATUSES = ["running", "queued", "exited", "timed_out", "out_of_memory", "signaled", "cancelled", "failed"];
const LIVE = ["running", "queued", "awaiting_approval"];
const EVERY_MS = 1000;

/** The caller's runs, newest first, as they begin and end. */
export function Runs() {
  const [status, setStatus] = useState("");
  const { value, problem, reload } = useLoaded(() => runs.list({ status, limit: "100" }), status, EVERY_MS);
  const [failure, setFailure] = useState<ReturnType<typeof asProblem> | null>(null);
  const cancel = async (id: string) => {
    try {
      await runs.cancel(id);
      setFailure(null);
    } catch (cause) {
      setFailure(asProblem(cause));
    }
    reload();
  };
  return (
    <section aria-labelledby="runs-title">
      <h2 id="runs-title">Runs</h2>
      <div class="bar">
        <Field label="Status">
          <select value={status} onChange={(event) => setStatus(event.currentTarget.value)}>
            <option value="">all</option>
            {STATUSES.map((name) => (
              <option key={name} value={name}>
                {name.replaceAll("_", " ")}
              </option>
            ))}
          </select>
        </Field>
      </div>
      <ProblemNote problem={failure ?? problem} />
      {value && value.runs.length === 0 && <p class="faint">There are no such runs. Results are kept for a limited time.</p>}
      {value && value.runs.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Runs, a table">
          <table>
            <thead>
              <tr>
                <th scope="col">Run</th>
                <th scope="col">Status</th>
                <th scope="col">Language</th>
                <th scope="col">Exit code</th>
                <th scope="col">Since</th>
                <th scope="col">
                  <span class="hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {value.runs.map((run) => (
                <Row key={run.id} run={run} cancel={cancel} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Row({ run, cancel }: { run: RunSummary; cancel: (id: string) => Promise<void> }) {
  return (
    <tr>
      <td>
        <a href={hrefOf("runs", run.id)}>
          <code>{run.id}</code>
        </a>
      </td>
      <td>
        <Status status={run.status} exitCode={run.exit_code} />
      </td>
      <td>{run.language}</td>
      <td>{run.exit_code ?? "–"}</td>
      <td>{moment(run.created_at)}</td>
      <td>
        {LIVE.includes(run.status) && (
          <button type="button" class="small" onClick={() => void cancel(run.id)} aria-label={`Cancel ${run.id}`}>
            Cancel
          </button>
        )}
      </td>
    </tr>
  );
}

/** One run, from its start, live if it still runs. */
export function Run({ id }: { id: string }) {
  const control = useRun();
  useEffect(() => control.follow(id), [id]);
  const isLive = control.view.phase === "waiting" || control.view.phase === "running";
  return (
    <div>
      <h2>Run</h2>
      <div class="bar">
        <a href={hrefOf("runs")}>All runs</a>
        <button type="button" onClick={control.cancel} disabled={!isLive}>
          Cancel
        </button>
      </div>
      <RunPanel view={control.view} />
    </div>
  );
}
