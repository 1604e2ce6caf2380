// Time series, drawn by uPlot.
import { html, useEffect, useRef } from "../../vendor/preact.js";
import UPlot from "../../vendor/uplot.js";

const HEIGHT = 180;
// Formats of ticks by their distance in seconds, and the line below a tick at which the day or the year changes.
const DAY = "\n{DD} {MMM}";
const TIMES = [
  [3600 * 24, "{DD} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [3600, "{HH}:{mm}", DAY, null, DAY, null, null, null, 1],
  [60, "{HH}:{mm}", DAY, null, DAY, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", DAY, null, DAY, null, null, null, 1],
  [0.001, "{HH}:{mm}:{ss}.{fff}", DAY, null, DAY, null, null, null, 1],
];

/**
 * A line or bars over time. `times` are in seconds; `values` has a value or null for each; `format` formats a value.
 * `summary` describes the chart for screen readers.
 */
export function Chart({ title, label, times, values, format, areBars = false, summary }) {
  const place = useRef(null);
  const chart = useRef(null);
  const latest = useRef({});
  latest.current = [times, values];

  useEffect(() => {
    // The reference is empty by the time that the clean-up runs.
    const element = place.current;
    function draw() {
      chart.current?.destroy();
      chart.current = new UPlot(options(element.clientWidth, { label, format, areBars }), latest.current, element);
    }
    draw();
    const observer = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    addEventListener("themechange", draw);
    return () => {
      removeEventListener("themechange", draw);
      observer.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, [label, format, areBars]);

  useEffect(() => chart.current?.setData(latest.current), [times, values]);

  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <div ref=${place} role="img" aria-label=${`${title}. ${summary}`}></div>
  </figure>`;
}

function options(width, { label, format, areBars }) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: color("--quiet"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: color("--line"), width: 1 },
    ticks: { stroke: color("--line"), width: 1 },
  };
  const bars = { fill: color("--series-1"), width: 0, paths: UPlot.paths.bars({ size: [0.7, 24] }) };
  return {
    width,
    height: HEIGHT,
    cursor: { y: false, drag: { setScale: false } },
    legend: { live: true },
    axes: [{ ...axis, values: TIMES }, { ...axis, size: 64, values: (_, ticks) => ticks.map(format) }],
    scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
    series: [
      { value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
      { label, stroke: color("--series-1"), width: 1.5, points: { size: 4 }, value: (_, value) => format(value), ...(areBars && bars) },
    ],
  };
}
