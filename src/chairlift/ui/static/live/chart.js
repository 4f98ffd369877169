// Chart: a line chart of the last minutes, drawn by uPlot, with a sentence for screen readers.
import { clock } from "../lib/format.js";
import { html, useEffect, useRef } from "../lib/html.js";
import { color } from "../lib/theme.js";
import uPlot from "../vendor/uplot-1.6.32.esm.js";

const HEIGHT = 130;
const FONT = "11px system-ui, sans-serif";

function optionsOf(width, series, format) {
  const muted = color("--muted");
  const axis = { stroke: muted, font: FONT, grid: { stroke: color("--border"), width: 1 }, ticks: { show: false } };
  return {
    width, height: HEIGHT, padding: [8, 8, 0, 0],
    cursor: { sync: { key: "live" }, points: { size: 6 }, drag: { x: false, y: false } },
    legend: { live: true },
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
    axes: [
      { ...axis, size: 22, space: 70, values: (_, times) => times.map(clock) },
      { ...axis, size: 48, space: 28, values: (_, values) => values.map(format) },
    ],
    series: [
      { label: "Time", value: (_, at) => (at == null ? "–" : clock(at)) },
      ...series.map((each) => ({
        label: each.label, stroke: color(each.color), width: 1.6, points: { show: false },
        dash: each.isLimit ? [4, 4] : undefined,
        fill: each.isFilled ? color(`${each.color}-soft`) : undefined,
        value: (_, value) => (value == null ? "–" : format(value)),
      })),
    ],
  };
}

/** `data` is [times, values, values, ...]; `series` has {label, color, isFilled, isLimit}. */
export function Chart({ title, series, data, format, theme }) {
  const frame = useRef();
  const plot = useRef(null);
  useEffect(() => {
    const element = frame.current;
    const width = () => Math.max(200, element.clientWidth);
    plot.current = new uPlot(optionsOf(width(), series, format), data, element);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: width(), height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [theme]);
  useEffect(() => plot.current?.setData(data), [data]);
  const last = data.map((values) => values.at(-1));
  return html`<figure class="chart"><figcaption>${title}</figcaption>
    <div ref=${frame} class="chart-frame" aria-hidden="true"></div>
    <p class="visually-hidden">${title} now: ${series.map((each, index) =>
      `${each.label} ${last[index + 1] == null ? "unknown" : format(last[index + 1])}`).join(", ")}</p></figure>`;
}
