import { useEffect, useState } from "preact/hooks";

import { host } from "../api/client";
import type { LanguagePool, Pool } from "../api/schema";
import { bytes, millis } from "../lib/format";
import { visibleLine } from "../lib/inert";
import { useLoaded } from "../lib/load";
import { buckets, parseMetrics, quantile, total, type Sample } from "../lib/metrics";
import { Chart } from "../ui/Chart";
import { ProblemNote } from "../ui/parts";

const EVERY_MS = 2000;
const MOST_POINTS = 300;

interface Reading {
  /** In seconds. */
  at: number;
  samples: Sample[];
  pool: Pool;
}

interface Point {
  at: number;
  runsPerSecond: number | null;
  median: number | null;
  slow: number | null;
  running: number;
  queued: number;
  ready: number;
  booting: number;
}

async function read(): Promise<Reading> {
  const [text, pool] = await Promise.all([host.metrics(), host.pool()]);
  return { at: Date.now() / 1000, samples: parseMetrics(text), pool };
}

function pointOf(now: Reading, before: Reading | null): Point {
  const seconds = before ? now.at - before.at : 0;
  const runs = (reading: Reading) => total(reading.samples, "belljar_runs_total");
  const latency = (part: number) => {
    const durations = (reading: Reading) => buckets(reading.samples, "belljar_run_duration_seconds");
    const value = before ? quantile(part, durations(before), durations(now)) : null;
    return value === null ? null : value * 1000;
  };
  const sum = (of: (language: LanguagePool) => number) => now.pool.languages.reduce((all, language) => all + of(language), 0);
  return {
    at: now.at,
    runsPerSecond: before && seconds > 0 ? (runs(now) - runs(before)) / seconds : null,
    median: latency(0.5),
    slow: latency(0.95),
    running: total(now.samples, "belljar_slots_in_use"),
    queued: total(now.samples, "belljar_queue_length"),
    ready: sum((language) => language.ready),
    booting: sum((language) => language.booting),
  };
}

/** How busy the server is, as long as the page is open. */
export function Load() {
  const { value, problem } = useLoaded(read, "load", EVERY_MS);
  const [history, setHistory] = useState<{ last: Reading | null; points: Point[] }>({ last: null, points: [] });
  useEffect(() => {
    if (!value) return;
    setHistory(({ last, points }) => ({ last: value, points: [...points, pointOf(value, last)].slice(-MOST_POINTS) }));
  }, [value]);

  const { points } = history;
  const times = points.map((point) => point.at);
  const line = (label: string, colour: string, of: (point: Point) => number | null) => ({ label, colour, values: points.map(of) });
  return (
    <section aria-labelledby="load-title">
      <h2 id="load-title">Load</h2>
      <ProblemNote problem={problem} />
      <div class="charts">
        <Chart
          title="Duration of runs"
          unit=" ms"
          times={times}
          lines={[line("median", "--accent", (point) => point.median), line("95 %", "--warn", (point) => point.slow)]}
        />
        <Chart title="Runs" unit=" /s" times={times} lines={[line("ended", "--accent", (point) => point.runsPerSecond)]} />
        <Chart
          title="Slots"
          unit=""
          times={times}
          lines={[line("in use", "--accent", (point) => point.running), line("waiting", "--bad", (point) => point.queued)]}
        />
        <Chart
          title="Warm pool"
          unit=""
          times={times}
          lines={[line("ready", "--good", (point) => point.ready), line("booting", "--warn", (point) => point.booting)]}
        />
      </div>
      {value && <PoolTable pool={value.pool} />}
    </section>
  );
}

function PoolTable({ pool }: { pool: Pool }) {
  if (!pool.enabled) return <p class="faint">The server has no warm pool.</p>;
  return (
    <>
      <p>
        The pool uses {bytes(pool.memory_bytes)} of {bytes(pool.memory_limit_bytes)}.
      </p>
      <div class="scroll" tabIndex={0} role="region" aria-label="Warm pool, a table">
        <table>
          <thead>
            <tr>
              {["Language", "Ready", "Target", "Hits", "Misses", "Unfit", "Refill", "Problem"].map((name) => (
                <th scope="col" key={name}>
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {pool.languages.map((language) => (
              <tr key={language.language}>
                <th scope="row">{language.language}</th>
                <td>{language.ready}</td>
                <td>{language.target}</td>
                <td>{language.hits}</td>
                <td>{language.misses}</td>
                <td>{language.unfit}</td>
                <td>{millis(language.refill_ms)}</td>
                <td>{language.problem ? visibleLine(language.problem) : "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
