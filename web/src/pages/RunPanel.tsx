import { useEffect, useRef } from "preact/hooks";

import { hrefOf } from "../lib/route";
import type { RunView } from "../lib/run";
import { Connections } from "../ui/Network";
import { Output } from "../ui/Output";
import { ProblemNote, Status } from "../ui/parts";
import { Result } from "../ui/Result";

/** The output of a run as it comes, and its result. */
export function RunPanel({ view }: { view: RunView }) {
  const { phase, transcript, result, problem, note } = view;
  const panel = useRef<HTMLElement>(null);
  useEffect(() => {
    if (phase === "waiting" && panel.current && isBelow(panel.current)) panel.current.scrollIntoView();
  }, [phase]);
  return (
    <section class="run" aria-label="Run" ref={panel}>
      <p class="state" role="status">
        {phase === "idle" && <span class="faint">Nothing has run yet</span>}
        {(phase === "waiting" || phase === "running") && <Status status={statusOf(view)} />}
        {result && <Status status={result.status} exitCode={result.exit_code} />} {note && <span class="faint">{note}</span>}{" "}
        {view.id && phase !== "idle" && <code class="faint">{view.id}</code>}
      </p>
      <ProblemNote problem={problem} />
      {view.approval && phase === "waiting" && (
        <p>
          The policy asks for a person's approval: <a href={hrefOf("approvals", view.approval)}>{view.approval}</a>
        </p>
      )}
      {phase !== "idle" && <Output transcript={transcript} />}
      <Connections events={view.network} />
      {result && <Result result={result} />}
    </section>
  );
}

function statusOf({ phase, approval }: RunView): string {
  if (phase === "running") return "running";
  return approval ? "awaiting_approval" : "queued";
}

/** As on a phone, where it comes after the program. */
function isBelow(panel: HTMLElement): boolean {
  return panel.getBoundingClientRect().top > innerHeight - 100;
}
