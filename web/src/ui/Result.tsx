import type { CompileResult, RunResult, Usage } from "../api/schema";
import { bytes, millis } from "../lib/format";
import { visible, visibleLine } from "../lib/inert";
import { Files } from "./Files";
import { Denied } from "./Network";
import { Facts, Status } from "./parts";

/** How a run ended, what it used, and what the box guaranteed. */
export function Result({ result }: { result: RunResult }) {
  const { usage, isolation, decision } = result;
  return (
    <section class="result" aria-label="Result">
      <p class="headline">
        <Status status={result.status} exitCode={result.exit_code} /> <span>exit code {result.exit_code}</span>{" "}
        <span class="faint">{millis(usage.wall_ms)}</span>
      </p>
      {decision && decision.action !== "allow" && (
        <p>
          <span class={`badge ${decision.action === "deny" ? "bad" : "good"}`}>{decision.action}</span>{" "}
          {visibleLine(decision.reason)} <span class="faint">by {visibleLine(decision.by)}</span>{" "}
          <code>{visibleLine(decision.rule)}</code>
        </p>
      )}
      <Facts
        facts={[
          ["CPU time", millis(usage.cpu_ms)],
          ["Memory, peak", bytes(usage.memory_peak_bytes)],
          ["Start", result.start],
          ["Runtime", visibleLine(result.runtime)],
          ["Backend", result.backend],
          ["Network", visibleLine(result.network)],
          ...traffic(usage),
        ]}
      />
      <p class="guarantees">
        <span class="faint">Guarantees kept: </span>
        {isolation.kept.map((name) => (
          <span class="badge good" key={name}>
            {name}
          </span>
        ))}
        {isolation.waived.map((name) => (
          <span class="badge bad" key={name}>
            {name} waived
          </span>
        ))}
      </p>
      {(result.stdout_truncated || result.stderr_truncated) && <p class="faint">The output was longer than its limit.</p>}
      {result.compile && <Compiled compile={result.compile} />}
      <Denied denied={result.network_denied ?? []} />
      <Files files={result.files ?? []} />
    </section>
  );
}

/** What went over the network, if Belljar watched it. */
export function traffic(usage: Usage | null | undefined): Array<[string, string]> {
  if (usage?.network_up_bytes === undefined) return [];
  return [
    ["Sent over the network", bytes(usage.network_up_bytes)],
    ["Received over the network", bytes(usage.network_down_bytes)],
  ];
}

/** What the compiler said; a program that did not compile has nothing else. */
function Compiled({ compile }: { compile: CompileResult }) {
  const text = visible(compile.stdout + compile.stderr);
  return (
    <details open={compile.exit_code !== 0}>
      <summary>
        Compiled in {millis(compile.usage.wall_ms)}, exit code {compile.exit_code}
      </summary>
      {text && (
        <pre class="output" dir="ltr" tabIndex={0} role="region" aria-label="Compiler">
          {text}
        </pre>
      )}
    </details>
  );
}
