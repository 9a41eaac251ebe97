// The text of /metrics, as far as the charts need it.
export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function parseMetrics(text: string): Sample[] {
  return text.split("\n").flatMap((line) => {
    const [, name, labels = "", value] = LINE.exec(line) ?? [];
    if (!name || value === undefined) return [];
    return [{ name, labels: Object.fromEntries([...labels.matchAll(LABEL)].map(([, key, text]) => [key, text])), value: Number(value) }];
  });
}

export function total(samples: Sample[], name: string): number {
  return samples.reduce((sum, sample) => (sample.name === name ? sum + sample.value : sum), 0);
}

/** How many observations of a histogram were at most so long, over all its labels, by the upper bound in seconds. */
export function buckets(samples: Sample[], name: string): Map<number, number> {
  const counts = new Map<number, number>();
  for (const sample of samples) {
    if (sample.name !== `${name}_bucket`) continue;
    const bound = sample.labels["le"] === "+Inf" ? Infinity : Number(sample.labels["le"]);
    counts.set(bound, (counts.get(bound) ?? 0) + sample.value);
  }
  return counts;
}

/** Below which a part of the observations between two moments lie, in seconds; nothing if there were none. */
export function quantile(part: number, before: Map<number, number>, now: Map<number, number>): number | null {
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const grown = (bound: number) => (now.get(bound) ?? 0) - (before.get(bound) ?? 0);
  const wanted = part * grown(Infinity);
  if (!(wanted > 0)) return null;
  let lower = 0;
  let counted = 0;
  for (const bound of bounds) {
    const count = grown(bound);
    if (count >= wanted) return bound === Infinity ? lower : lower + ((bound - lower) * (wanted - counted)) / (count - counted);
    [lower, counted] = [bound, count];
  }
  return null;
}
