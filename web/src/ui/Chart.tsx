import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  colour: string;
  values: Array<number | null>;
}

interface Props {
  title: string;
  unit: string;
  /** In seconds. */
  times: number[];
  lines: Line[];
}

const HEIGHT = 200;

/** Lines over time. Their last values are the text for those who do not see them. */
export function Chart({ title, unit, times, lines }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = lines.map((line) => line.label).join("\n");

  useEffect(() => {
    const { current } = place;
    if (!current) return undefined;
    plot.current = new uPlot(optionsOf(lines, current.clientWidth), dataOf(times, lines), current);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: current.clientWidth, height: HEIGHT }));
    observer.observe(current);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
    };
  }, [names]);

  useEffect(() => plot.current?.setData(dataOf(times, lines)), [times]);

  const latest = lines.map((line) => `${line.label} ${shown(line.values.at(-1) ?? null, unit)}`).join(", ");
  return (
    <section class="card chart" aria-label={title}>
      <h3>{title}</h3>
      <p class="faint">{latest}</p>
      <div ref={place} role="img" aria-label={`${title}: ${latest}`} />
    </section>
  );
}

function shown(value: number | null, unit: string): string {
  return value === null ? "–" : `${value < 10 ? Math.round(value * 10) / 10 : Math.round(value)}${unit}`;
}

function dataOf(times: number[], lines: Line[]): uPlot.AlignedData {
  return [times, ...lines.map((line) => line.values)];
}

function optionsOf(lines: Line[], width: number): uPlot.Options {
  const axis = { stroke: coloured("--faint"), grid: { stroke: coloured("--line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    cursor: { show: false },
    legend: { show: false },
    scales: { y: { range: (_, __, max) => [0, Math.max(max * 1.1, 1)] } },
    axes: [axis, { ...axis, size: 44 }],
    series: [{}, ...lines.map((line) => ({ label: line.label, stroke: coloured(line.colour), width: 2, points: { size: 4 } }))],
  };
}

/** Read when something is drawn, to follow the theme, from an element: a canvas does not know light-dark(). */
function coloured(name: string): () => string {
  return () => {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  };
}
