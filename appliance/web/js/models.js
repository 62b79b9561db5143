// The models, each with what it is, what runs it, what it costs, how it does, and what can be done with it.

import { admin } from "./api.js";
import { $, h, keyed } from "./dom.js";
import { bytes, ms, number, rate, when } from "./format.js";
import { maybe, t } from "./i18n.js";
import { notice } from "./notices.js";
import { pick } from "./tryit.js";

const busy = new Map(); // name → what is being done
let last = null;

export function translated() {
  $("cards").replaceChildren();
}

export function show(status) {
  last = status;
  keyed($("cards"), status.models, (model) => model.name, sign, card);
}

/** What is shown of a model. Figures that change all the time change in steps that a person can follow. */
function sign(model) {
  const { versions, ...rest } = model;
  const shown = versions.map((version) => ({ ...version, requests_per_s: rate(version.requests_per_s), p50_ms: ms(version.p50_ms), p99_ms: ms(version.p99_ms) }));
  return JSON.stringify([rest, shown, busy.get(model.name)]);
}

function card(model) {
  const version = model.versions.findLast((one) => one.state === "READY") ?? model.versions.at(-1);
  const title = `model-${model.name}`;
  return h(
    "article",
    { class: "card", "aria-labelledby": title, "data-model": model.name },
    h(
      "header",
      {},
      h("h3", { id: title, text: model.name }),
      h("span", { class: "pill", "data-kind": kind(model), text: state(model) }),
      h("button", {
        type: "button",
        class: "pin",
        "data-act": "pin",
        "aria-pressed": String(model.pinned),
        title: t(model.pinned ? "unpin_why" : "pin_why"),
        onclick: () => act(model.name, model.pinned ? "unpin" : "pin"),
        text: t(model.pinned ? "pinned" : "pin"),
      }),
    ),
    h("p", { class: "chips" }, chips(model).map((text) => h("span", { class: "chip", text }))),
    fault(model, version),
    h("dl", { class: "facts" }, facts(model, version).map(([name, value]) => [h("dt", { text: t(name) }), h("dd", {}, value)])),
    [...model.notes, ...(version?.notes ?? [])].map((note) => h("p", { class: "note small", text: note })),
    h("footer", {}, buttons(model)),
  );
}

const loading = (model) => model.versions.some((version) => version.state === "LOADING");

function state(model) {
  if (busy.has(model.name)) return t(`doing_${busy.get(model.name)}`);
  if (model.ready) return t("is_ready");
  if (loading(model)) return t("is_loading");
  if (model.error) return t("is_failed");
  return t(model.asleep ? "is_asleep" : "is_unloaded");
}

function kind(model) {
  if (model.ready) return model.error || model.versions.some((version) => version.device_reason) ? "warn" : "good";
  if (loading(model) || busy.has(model.name)) return "info";
  return model.error ? "bad" : "quiet";
}

function chips(model) {
  return [model.task ? maybe(`task_${model.task}`, model.task) : null, model.embedded ? t("embedded") : null, model.required ? t("required") : null].filter(Boolean);
}

function fault(model, version) {
  const doing = model.error ? null : model.versions.find((one) => one.progress)?.progress;
  if (doing) return h("p", { class: "fault", text: doing });
  const reason = model.error ?? elsewhere(version);
  return reason ? h("p", { class: model.error ? "fault bad" : "fault warn", text: reason }) : null;
}

/** Why a copy is not on the device asked for. */
function elsewhere(version) {
  const found = version?.copies.filter((copy) => copy.reason) ?? [];
  if (!found.length) return version?.device_reason;
  return version.copies.length > 1 ? `${found.map((copy) => copy.device).join(", ")}: ${found[0].reason}` : found[0].reason;
}

/** Each copy: its device, its engine where that is not the device's only one, and what it takes. */
function copies(version) {
  return h(
    "ul",
    {},
    version.copies.map((copy) => h("li", { text: [place(copy), bytes(copy.memory_bytes || null), copy.reason].filter(Boolean).join(" · ") })),
  );
}

function place(copy) {
  const engines = last.engines.map((engine) => engine.id);
  return engines.length < 2 || copy.engine === copy.device ? copy.device : `${copy.device} (${t("in_engine", { name: copy.engine })})`;
}

function facts(model, version) {
  if (!version) return [];
  const many = model.versions.length > 1 ? ` (${t("all")}: ${model.versions.map((one) => one.version).join(", ")})` : "";
  const rows = [["version", version.version + many]];
  if (model.parts.length) rows.push(["made_of", model.parts.join(", ")]);
  else rows.push(["backend", version.backend ?? "–"], ["device", version.copies.length === 1 ? place(version.copies[0]) : version.device ?? "–"], ["batch", batch(version)], ["cost", cost(version)], ["memory", bytes(version.memory_bytes || null)]);
  if (version.copies.length > 1) rows.push(["copies", copies(version)]);
  if (!model.parts.length) rows.push(["requests", requests(version)]);
  if (version.p50_ms !== null) rows.push(["latency", `${ms(version.p50_ms)} · ${ms(version.p99_ms)}`]);
  if (version.load_ms) rows.push(["load_time", ms(version.load_ms + version.warmup_ms)]);
  if (version.last_error) rows.push(["last_error", `${when(version.last_error.at)} · ${version.last_error.code}: ${version.last_error.message}`]);
  return rows;
}

function batch(version) {
  if (!version.max_batch) return t("no_batch");
  const mean = version.mean_batch === null ? "" : ` · ⌀ ${number(version.mean_batch, 1)}`;
  return t("up_to", { most: number(version.max_batch) }) + mean;
}

function cost(version) {
  const { source, runs } = version.cost;
  if (!runs.length) return t(`cost_${source}`);
  const told = runs.length > 1 ? [runs[0], runs.at(-1)] : runs;
  return `${told.map((run) => t("cost_of", { size: bytes(run.bytes), items: number(run.batch) })).join(" · ")} (${t(`cost_${source}`)})`;
}

function requests(version) {
  const failed = version.failed ? ` · ${t("failed", { count: number(version.failed) })}` : "";
  const now = version.requests_per_s ? ` · ${rate(version.requests_per_s)}/s` : "";
  return number(version.requests) + failed + now;
}

function buttons(model) {
  const at = busy.get(model.name);
  const button = (name, does, extra = {}) => h("button", { type: "button", "data-act": name, disabled: Boolean(at), onclick: does, text: t(name), "aria-label": `${t(name)}: ${model.name}`, ...extra });
  const loaded = model.versions.some((version) => version.state !== "UNAVAILABLE") || model.asleep;
  return [
    model.ready ? button("try_it", () => pick(model.name), { class: "primary" }) : null,
    model.ready && !model.error ? null : button("load", () => act(model.name, "load")),
    loaded ? button("unload", () => act(model.name, "unload")) : null,
  ];
}

async function act(name, what) {
  busy.set(name, what);
  show(last);
  try {
    await admin[what](name);
    if (what === "load" || what === "unload") notice("good", t(`done_${what}`, { name }));
  } catch (error) {
    notice("bad", `${name}: ${error.message}`);
  } finally {
    busy.delete(name);
    show(last);
  }
}
