// The numbers of now: tiles, queues, errors, the engines.

import { $, h, keyed, say } from "./dom.js";
import * as engines from "./engines.js";
import { ms, number, rate } from "./format.js";
import { maybe, t } from "./i18n.js";

const TILES = [
  ["rate", (s) => rate(s.traffic.requests_per_s), () => t("per_s")],
  ["p50", (s) => ms(s.traffic.p50_ms)],
  ["p99", (s) => ms(s.traffic.p99_ms)],
  ["waiting", (s) => number(s.queue.waiting), () => t("in_queues")],
  ["running", (s) => `${number(s.queue.running)}`, (s) => t("of_lanes", { lanes: number(lanes(s)) })],
  ["errors", (s) => number(sum(s.traffic.errors)), () => t("since_start")],
];

const sum = (counts) => Object.values(counts).reduce((all, one) => all + one, 0);
const versions = (status) => status.models.flatMap((model) => model.versions.map((version) => ({ model, version })));
const lanes = (status) =>
  versions(status).reduce((all, { version }) => all + (version.state === "READY" ? version.instances : 0), 0);

export function show(status) {
  tiles(status);
  queues(status);
  errors(status);
  engines.show(status);
}

export function translated() {
  for (const id of ["tiles", "queues", "errors"]) $(id).replaceChildren();
  engines.translated();
}

function tiles(status) {
  const box = $("tiles");
  if (!box.children.length)
    box.append(
      ...TILES.map(([name]) =>
        h("div", { class: "tile", id: `tile-${name}` }, h("h2", { text: t(name) }), h("p", { class: "value" }), h("p", { class: "muted small" })),
      ),
    );
  for (const [name, value, more] of TILES) {
    const [, main, small] = $(`tile-${name}`).children;
    say(main, value(status));
    say(small, more ? more(status) : t("last_seconds"));
  }
  $("tile-errors").classList.toggle("has", sum(status.traffic.errors) > 0);
  $("tile-waiting").classList.toggle("has", status.queue.waiting > 0);
}

function queues(status) {
  const used = versions(status).filter(({ version }) => version.instances && (version.state !== "UNAVAILABLE" || version.waiting));
  const many = (model) => model.versions.length > 1;
  const box = $("queues");
  if (!box.firstChild) {
    const heads = ["model", "waiting", "running", "rate", "p50", "p99", "mean_batch"];
    box.append(
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, heads.map((name, i) => h("th", { scope: "col", class: i ? "n" : null, text: t(name) })))),
        h("tbody"),
      ),
    );
  }
  const most = Math.max(1, ...used.map(({ version }) => version.waiting));
  keyed(
    box.querySelector("tbody"),
    used,
    ({ model, version }) => `${model.name} ${version.version}`,
    ({ version }) =>
      [most, version.waiting, version.running, version.requests_per_s, version.p50_ms, version.p99_ms, version.mean_batch, version.instances].join(),
    ({ model, version }) => {
      const bar = h("span", { class: "bar" });
      bar.style.setProperty("--share", version.waiting / most);
      const cells = [
        h("span", {}, bar, number(version.waiting)),
        `${number(version.running)} / ${number(version.instances)}`,
        version.requests_per_s ? rate(version.requests_per_s) : "–",
        ms(version.p50_ms),
        ms(version.p99_ms),
        version.mean_batch === null ? "–" : number(version.mean_batch, 1),
      ];
      const name = many(model) ? `${model.name} : ${version.version}` : model.name;
      return h("tr", {}, h("th", { scope: "row", text: name }), cells.map((cell) => h("td", { class: "n" }, cell)));
    },
  );
}

function errors(status) {
  const found = Object.entries(status.traffic.errors).sort((a, b) => b[1] - a[1]);
  const box = $("errors");
  if (!found.length) {
    if (!box.querySelector(".empty")) box.replaceChildren(h("p", { class: "muted empty", text: t("no_errors") }));
    return;
  }
  if (!box.querySelector("ul")) box.replaceChildren(h("ul", { class: "counts" }));
  keyed(
    box.firstChild,
    found,
    ([code]) => code,
    ([, count]) => `${count}`,
    ([code, count]) =>
      h("li", {}, h("span", {}, h("code", { text: code }), h("span", { class: "muted small", text: maybe(`code_${code}`, "") })), h("b", { text: number(count) })),
  );
}
