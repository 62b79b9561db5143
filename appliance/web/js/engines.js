// The engine processes: one, or one for each device and family of backends.

import { $, h } from "./dom.js";
import { bytes, number, when } from "./format.js";
import { maybe, t } from "./i18n.js";

const KINDS = { ready: "good", starting: "info", restarting: "warn", stopped: "bad" };
const SHOWN = 3; // ends of one of several

export function show({ engine, engines }) {
  const several = engines.length > 1;
  const box = $("engine");
  const sign = JSON.stringify(several ? engines.map(seen) : seen(engine));
  if (box.dataset.sign === sign && box.firstChild) return;
  box.dataset.sign = sign;
  $("engine-title").textContent = t(several ? "engines" : "engine");
  box.replaceChildren(...(several ? engines.map(one) : alone(engine)));
}

export function translated() {
  $("engine").replaceChildren();
}

/** [id, the last end's reason] of the engines that were started again since `before`, a Map of id → how often. */
export function restarted(before, engines) {
  return engines.filter(({ id, restarts }) => before.has(id) && restarts > before.get(id)).map(({ id, deaths }) => [id, deaths.at(-1)?.reason ?? ""]);
}

/** What is shown of an engine. Its memory in steps, so that it is not drawn anew all the time. */
const seen = (engine) => [engine.id, state(engine), facts(engine), engine.deaths];
const state = (engine) => maybe(`engine_${engine.state}`, engine.state);

const facts = (engine) => [
  ["process", String(engine.pid ?? "–")],
  ["memory", bytes(engine.memory_bytes)],
  ["runtime", Object.entries(engine.runtimes).map(([name, version]) => `${name} ${version}`).join(", ") || "–"],
  ["restarts", number(engine.restarts)],
];

const list = (rows) => h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", { text: t(name) }), h("dd", { text: value })]));

const ends = (deaths) =>
  h(
    "ol",
    { class: "deaths", "aria-label": t("restarts") },
    [...deaths].reverse().map((death) => h("li", {}, h("time", { datetime: new Date(death.at * 1000).toISOString(), text: when(death.at) }), h("span", { text: death.reason }))),
  );

function alone(engine) {
  return [list([["state_word", state(engine)], ...facts(engine)]), engine.deaths.length ? ends(engine.deaths) : h("p", { class: "muted", text: t("no_restarts") })];
}

function one(engine) {
  return h(
    "section",
    { class: "engine", "data-engine": engine.id, "aria-label": `${t("engine")} ${engine.id}` },
    h("p", { class: "between" }, h("b", { text: engine.id }), h("span", { class: "pill", "data-kind": KINDS[engine.state] ?? "quiet", text: state(engine) })),
    list(facts(engine)),
    engine.deaths.length ? ends(engine.deaths.slice(-SHOWN)) : null,
  );
}
