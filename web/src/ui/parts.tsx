// Small parts that several pages have.
import type { ComponentChildren } from "preact";

import type { Problem } from "../api/client";
import type { Finding } from "../api/schema";
import { words } from "../lib/format";
import { visibleLine } from "../lib/inert";

const TONES: Record<string, string> = {
  exited: "good",
  approved: "good",
  running: "busy",
  queued: "busy",
  awaiting_approval: "busy",
  pending: "busy",
  cancelled: "plain",
  expired: "plain",
};

export function Status({ status, exitCode }: { status: string; exitCode?: number | null }) {
  const failed = status === "exited" && exitCode !== undefined && exitCode !== null && exitCode !== 0;
  const tone = failed ? "bad" : (TONES[status] ?? "bad");
  return <span class={`badge ${tone}`}>{words(visibleLine(status))}</span>;
}

export function ProblemNote({ problem }: { problem: Problem | null }) {
  if (!problem) return null;
  return (
    <div class="problem" role="alert">
      <strong>{visibleLine(problem.message)}</strong>
      {problem.hint && <p>{visibleLine(problem.hint)}</p>}
    </div>
  );
}

export function FindingList({ findings }: { findings: Finding[] }) {
  if (findings.length === 0) return null;
  return (
    <ul class="findings" aria-label="Findings">
      {findings.map((finding, at) => (
        <li key={at}>
          <span class={`badge severity-${finding.severity}`}>{finding.severity}</span>{" "}
          <span class="faint">line {finding.line}</span> <bdi>{visibleLine(finding.message)}</bdi>{" "}
          <code>{visibleLine(finding.rule)}</code>
        </li>
      ))}
    </ul>
  );
}

export function Field({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
    </label>
  );
}

export function Facts({ facts }: { facts: Array<[string, ComponentChildren]> }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
