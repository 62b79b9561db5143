// Trying a model: choose it, give it a picture, a text or numbers, and see what it makes of them.

import { call, hasKey, metadata } from "./api.js";
import { answerOf, clear, problem } from "./answer.js";
import { $, h, keyed } from "./dom.js";
import { maybe, t } from "./i18n.js";
import * as snippets from "./snippets.js";
import { dropping } from "./upload.js";

const SAMPLES = ["chelsea.jpg", "coffee.jpg", "astronaut.jpg", "receipt.jpg"];
/** The one parameter of a task that is worth a field: [name, type, least, most, step]. */
const WISHES = {
  classify: ["top_k", 1, 20, 1],
  detect: ["threshold", 0, 1, 0.05],
  segment: ["threshold", 0, 1, 0.05],
  ocr: ["min_score", 0, 1, 0.05],
};
const PICTURES = Object.keys(WISHES);
const MOST_NUMBERS = 512;

let parts = {};
let models = [];
let about = null; // the chosen model's metadata
let input = { kind: "none" }; // {kind: "file", blob, name} | {kind: "json", text}
let seen = false;
let running = null;

export function start(form) {
  const model = h("select", { id: "try-model", onchange: () => changed() });
  const wish = h("input", { type: "number", id: "try-wish", oninput: () => told() });
  const file = h("input", { type: "file", id: "try-file", accept: "image/*", onchange: () => give(file.files[0]) });
  const drop = h("label", { class: "drop", for: "try-file" }, file, h("span", { "data-t": "try_drop" }), h("span", { class: "muted small", "data-t": "try_kinds" }));
  const samples = h("div", { class: "samples", role: "group", "data-t-label": "samples" }, SAMPLES.map(sample));
  const text = h("textarea", { id: "try-text", rows: 8, spellcheck: "false", oninput: () => told() });
  const go = h("button", { type: "submit", class: "primary", id: "try-go", "data-t": "run" });
  const takes = h("p", { class: "muted small", id: "try-takes" });
  parts = { model, wish, file, drop, samples, text, go, takes };
  form.append(
    h("label", {}, h("span", { "data-t": "model" }), model),
    h("div", { id: "try-picture", class: "stack" }, drop, samples),
    h("label", { id: "try-words", hidden: true }, h("span", { "data-t": "numbers_or_text" }), text),
    takes,
    h("div", { class: "row" }, h("label", { id: "try-wished" }, h("span", { id: "try-wish-name" }), wish), go),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  dropping(drop, give);
  document.addEventListener("paste", pasted);
  snippets.start($("snippets"));
  clear();
  translated();
}

function sample(name) {
  const picture = h("img", { src: `/web/samples/${name}`, alt: "", loading: "lazy", width: 88, height: 64 });
  const use = async () => give(new File([await (await fetch(picture.src)).blob()], name, { type: "image/jpeg" }));
  return h("button", { type: "button", class: "sample", "data-sample": name, onclick: use }, picture);
}

export function translated() {
  for (const element of $("ask").querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const button of parts.samples.children) button.setAttribute("aria-label", t(`sample_${button.dataset.sample.split(".")[0]}`));
  parts.samples.setAttribute("aria-label", t("samples"));
  snippets.translated();
  if (about) fields();
  else clear();
}

export function show(status) {
  models = status.models;
  const first = (model) => (PICTURES.includes(model.task) ? 0 : 1);
  const listed = [...models].sort((a, b) => first(a) - first(b) || a.name.localeCompare(b.name));
  keyed(
    parts.model,
    listed,
    (model) => model.name,
    (model) => [model.task, model.ready].join(),
    (model) => h("option", { value: model.name, text: `${model.name} — ${model.ready ? maybe(`task_${model.task}`, model.task) : t("not_ready")}` }),
  );
  if (seen && (!about || about.name !== parts.model.value)) changed();
}

/** The view was opened or left. */
export function opened(now) {
  seen = now;
  if (now && models.length && !about) changed();
}

/** Another part of the page wants this model tried. */
export function pick(name) {
  parts.model.value = name;
  about = null;
  location.hash = "#/try";
  changed();
}

const task = () => about?.parameters.task ?? null;
const usesPicture = () => PICTURES.includes(task());
const usesText = () => ["embed", "generate", "rerank"].includes(task());

async function changed() {
  const name = parts.model.value;
  if (!name || about?.name === name) return;
  try {
    const found = await metadata(name);
    if (parts.model.value !== name) return;
    const before = usesPicture();
    about = found;
    parts.wish.value = "";
    fields();
    if (usesPicture() && before && input.kind === "file") run();
    else clear();
  } catch (error) {
    about = { name, parameters: {}, inputs: [] };
    fields();
    problem(error);
  }
}

function fields() {
  const wished = WISHES[task()];
  $("try-picture").hidden = !usesPicture();
  $("try-words").hidden = usesPicture() || !task();
  $("try-wished").hidden = !wished;
  parts.go.disabled = !task();
  if (wished) {
    const [name, min, max, step] = wished;
    $("try-wish-name").textContent = t(`wish_${name}`);
    Object.assign(parts.wish, { name, min, max, step, placeholder: t("default") });
  }
  const takes = about.inputs.map((one) => `${one.name} ${one.datatype}[${one.shape.join(", ")}]`).join(" · ");
  parts.takes.textContent = usesPicture() || usesText() || !takes ? "" : t("takes", { takes });
  if (!usesPicture() && about.name !== parts.text.dataset.model) {
    parts.text.dataset.model = about.name;
    parts.text.value = example(about.inputs);
  }
  if (!usesPicture()) input = { kind: "json", text: parts.text.value };
  else if (input.kind === "json") input = { kind: "none" };
  told();
}

/** What could be sent: zeros of the least shape, or words for a model that takes one text. */
function example(inputs) {
  const isText = inputs.length === 1 && inputs[0].datatype === "BYTES" && inputs[0].shape.every((size) => size < 2);
  const text = { text: t("example_text") };
  if (task() === "rerank") return JSON.stringify({ ...text, parameters: { query: t("example_text") } }, null, 2);
  if (isText || usesText()) return JSON.stringify(text, null, 2);
  const nested = (shape, leaf) => (shape.length ? Array.from({ length: Math.max(1, shape[0]) }, () => nested(shape.slice(1), leaf)) : leaf);
  const size = (shape) => shape.reduce((all, one) => all * Math.max(1, one), 1);
  const leaf = { BYTES: "", BOOL: false };
  const values = Object.fromEntries(inputs.map((one) => [one.name, size(one.shape) > MOST_NUMBERS ? [] : nested(one.shape, leaf[one.datatype] ?? 0)]));
  return JSON.stringify({ inputs: values });
}

/** The call as it stands, for sending it and for showing it in other languages. */
function request() {
  const query = parts.wish.value && WISHES[task()] ? `?${parts.wish.name}=${parts.wish.value}` : "";
  const path = `/predict/${encodeURIComponent(parts.model.value)}${query}`;
  if (usesPicture()) {
    const { blob, name } = input.kind === "file" ? input : { blob: null, name: "photo.jpg" };
    return { path, file: name, type: blob?.type || "application/octet-stream", body: blob };
  }
  return { path, text: parts.text.value, type: "application/json", body: parts.text.value };
}

const told = () => snippets.show(request(), hasKey());

function pasted(event) {
  if (!seen || !usesPicture()) return;
  const found = [...(event.clipboardData?.files ?? [])].find((file) => file.type.startsWith("image/"));
  if (found) {
    event.preventDefault();
    give(found);
  }
}

function give(file) {
  if (!file || !usesPicture()) return;
  input = { kind: "file", blob: file, name: file.name || "pasted.png" };
  parts.file.value = "";
  run();
}

async function run() {
  told();
  const { path, type, body } = request();
  if (!body) {
    problem({ message: t("give_first") });
    return;
  }
  running?.abort();
  const mine = (running = new AbortController());
  parts.go.disabled = true;
  try {
    const started = performance.now();
    const response = await call("POST", path, { body, headers: { "Content-Type": type }, signal: mine.signal });
    const result = await response.json();
    if (running === mine) await answerOf(task(), result, usesPicture() ? body : null, response.headers, performance.now() - started);
  } catch (error) {
    if (running === mine) problem(error);
  } finally {
    if (running === mine) parts.go.disabled = false;
    told();
  }
}
