// The last fifteen minutes. New samples are asked for every five seconds while the page is seen.

import { history } from "./api.js";
import { h } from "./dom.js";
import { bytes, ms, number, rate } from "./format.js";
import { language, maybe, t } from "./i18n.js";

const SPAN_S = 900;
const COLOURS = 8;
const LEAST_SPAN_S = 120;
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const height = () => Math.round(rem() * 11.3);
const BINARY = Array.from({ length: 24 }, (_, i) => 2 ** (20 + i));
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const EMPTY = { at: [], waiting: [], running: [], requests_per_s: [], p50_ms: [], p99_ms: [], errors: [], memory: {} };

let box = null;
let data = structuredClone(EMPTY);
let drawn = [];
let asking = false;

const CHARTS = [
  { title: "memory", unit: bytes, steps: BINARY, lines: () => memoryLines() },
  { title: "queue", unit: (n) => number(n), whole: true, steps: WHOLE, lines: () => [["waiting", data.waiting, "--c2"], ["running", data.running, "--c1"]] },
  { title: "latency", unit: ms, lines: () => [["p50", data.p50_ms, "--c1"], ["p99", data.p99_ms, "--c2"]] },
  { title: "requests", unit: rate, lines: () => [["rate", data.requests_per_s, "--c1"], ["errors", data.errors, "--c3"]] },
];

/** Of the device that models run on: a GPU where there is one. Of several GPUs what is used of each. */
function memoryLines() {
  const ids = Object.keys(data.memory);
  const cards = ids.filter((id) => id !== "cpu").slice(0, COLOURS);
  if (cards.length > 1) return cards.map((id, i) => [id, data.memory[id].ours.map((ours, at) => (ours === null ? null : ours + data.memory[id].others[at])), `--m${i}`]);
  const device = data.memory[ids.find((id) => id !== "cpu") ?? ids[0]];
  const none = data.at.map(() => null);
  return [["mem_ours", device?.ours ?? none, "--c1"], ["mem_others", device?.others ?? none, "--c2"], ["mem_total", device?.total ?? none, "--edge"]];
}

export function start(parent) {
  box = parent;
  new ResizeObserver(() => visible()).observe(box);
  document.addEventListener("visibilitychange", () => refresh());
  setInterval(refresh, 5000);
}

/** The page's language or colours have changed. */
export function restyle() {
  build();
}

/** The charts may be seen again, or have another size. */
export function visible() {
  if (!box.offsetWidth) return;
  if (!drawn.length) build();
  for (const chart of drawn) {
    const width = chart.root.parentElement.clientWidth;
    if (width && width !== chart.width) chart.setSize({ width, height: height() });
  }
}

export async function refresh() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const last = data.at.at(-1) ?? 0;
    append(await history(last));
  } catch {
    // the stream tells that the appliance is away
  } finally {
    asking = false;
  }
}

function append(fresh) {
  if (!fresh.at.length) return;
  if (fresh.at[0] <= (data.at.at(-1) ?? 0)) data = structuredClone(EMPTY);
  const before = data.at.length;
  const from = Math.max(0, [...data.at, ...fresh.at].findIndex((at) => at > fresh.at.at(-1) - SPAN_S));
  const join = (old, more) => [...old, ...more].slice(from);
  const blank = (count) => Array(count).fill(null);
  const memory = {};
  for (const id of new Set([...Object.keys(data.memory), ...Object.keys(fresh.memory)]))
    memory[id] = Object.fromEntries(
      ["total", "ours", "others"].map((kind) => [
        kind,
        join(data.memory[id]?.[kind] ?? blank(before), fresh.memory[id]?.[kind] ?? blank(fresh.at.length)),
      ]),
    );
  const columns = Object.keys(EMPTY).filter((name) => name !== "memory");
  data = { ...Object.fromEntries(columns.map((name) => [name, join(data[name], fresh[name])])), memory };
  if (drawn.some((plot, i) => plot.series.length !== CHARTS[i].lines().length + 1)) build(); // another GPU
  else if (drawn.length) CHARTS.forEach((chart, i) => update(drawn[i], chart));
}

function update(plot, chart) {
  const lines = chart.lines();
  const end = data.at.at(-1) ?? Date.now() / 1000;
  plot.batch(() => {
    plot.setData([data.at, ...lines.map(([, values]) => values)]);
    plot.setScale("x", { min: end - Math.min(SPAN_S, Math.max(LEAST_SPAN_S, end - (data.at[0] ?? end))), max: end });
  });
  if (!(plot.cursor.left >= 0)) plot.setLegend({ idx: data.at.length - 1 });
  const words = lines.map(([name, values]) => `${maybe(name, name)} ${told(chart, values.at(-1))}`).join(", ");
  plot.root.parentElement.setAttribute("aria-label", `${t(`chart_${chart.title}`)}: ${words}`);
}

/** Where a value has none beside it, no line is drawn: it gets a point. */
function lonely(values) {
  const none = (value) => value === null || value === undefined;
  const found = [];
  values.forEach((value, i) => {
    if (!none(value) && none(values[i - 1]) && none(values[i + 1])) found.push(i);
  });
  return found;
}

const told = (chart, value) => (value === null || value === undefined ? "–" : chart.unit(value));

function build() {
  for (const chart of drawn) chart.destroy();
  drawn = [];
  if (!box?.offsetWidth) return;
  box.replaceChildren();
  drawn = CHARTS.map((chart) => {
    const frame = h("div", { role: "img", class: "plot" });
    box.append(h("figure", {}, h("figcaption", { text: t(`chart_${chart.title}`) }), frame));
    const plot = new uPlot(options(chart, frame.clientWidth), [[], ...chart.lines().map(() => [])], frame);
    update(plot, chart);
    return plot;
  });
}

function options(chart, width) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const clock = new Intl.DateTimeFormat(language(), { hour: "2-digit", minute: "2-digit" });
  const exact = new Intl.DateTimeFormat(language(), { timeStyle: "medium" });
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `${Math.round(rem() * 0.74)}px system-ui, sans-serif` };
  return {
    width,
    height: height(),
    padding: [8, 8, 0, 0],
    cursor: { sync: { key: "live" }, drag: { x: false, y: false }, points: { size: 6 } },
    legend: { live: true },
    scales: { x: { time: true, auto: false }, y: { range: (plot, low, high) => [0, Math.max(high ?? 0, chart.whole ? 4 : 0) * 1.08 || 1] } },
    axes: [
      { ...axis, size: rem() * 1.75, space: rem() * 5, values: (plot, splits, at, space, step) => splits.map((tick) => (step < 60 ? exact : clock).format(tick * 1000)) },
      { ...axis, size: rem() * 4.2, space: rem() * 2.1, incrs: chart.steps, values: (plot, splits) => splits.map((value) => chart.unit(value)) },
    ],
    series: [
      { label: t("time"), value: (plot, at) => (at === null || at === undefined ? "–" : exact.format(at * 1000)) },
      ...chart.lines().map(([name, , line], i) => ({
        label: maybe(name, name),
        stroke: colour(line),
        width: line === "--edge" ? 1.5 : 2,
        dash: line === "--edge" ? [4, 4] : undefined,
        fill: i === 0 ? `${colour(line)}22` : undefined,
        points: { show: true, size: 4, fill: colour(line), filter: (plot, at) => lonely(plot.data[at]) },
        spanGaps: false,
        value: (plot, value) => told(chart, value),
      })),
    ],
  };
}
