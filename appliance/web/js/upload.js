// Adding a model: a file is chosen or dropped, sent with its progress, and the check's result told in words.

import { admin } from "./api.js";
import { h, say } from "./dom.js";
import { bytes, ms, percent } from "./format.js";
import { t } from "./i18n.js";

let form = null;
let file = null;
let parts = {};
let sending = false;

export function start(parent) {
  form = parent;
  build();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (file && !sending) send();
  });
}

export function translated() {
  if (!sending) build();
}

function build() {
  const input = h("input", { type: "file", id: "add-file", accept: ".onnx,.zip", onchange: () => chosen(input.files[0]) });
  const name = h("input", { id: "add-name", required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", maxlength: 128, spellcheck: "false", autocomplete: "off" });
  const go = h("button", { type: "submit", class: "primary", id: "add-go", disabled: true, text: t("add") });
  const what = h("span", { text: t("add_drop") });
  const drop = h("label", { class: "drop", for: "add-file" }, input, what, h("span", { class: "muted small", text: t("add_kinds") }));
  const progress = h("progress", { max: 1, value: 0, hidden: true, "aria-label": t("add_sending") });
  const result = h("p", { class: "result", role: "status" });
  parts = { input, name, go, what, drop, progress, result };
  dropping(drop, chosen);
  form.replaceChildren(drop, h("div", { class: "row" }, h("label", { class: "grow" }, h("span", { text: t("add_name") }), name), go), progress, result);
  if (file) chosen(file);
}

/** Files that are dropped on `element` go to `take`. */
export function dropping(element, take) {
  const mark = (on) => element.classList.toggle("over", on);
  for (const kind of ["dragenter", "dragover"])
    element.addEventListener(kind, (event) => {
      event.preventDefault();
      mark(true);
    });
  element.addEventListener("dragleave", () => mark(false));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(false);
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}

function chosen(next) {
  if (!next || sending) return;
  file = next;
  say(parts.what, `${file.name} · ${bytes(file.size)}`);
  parts.name.value = file.name.replace(/\.(onnx|zip)$/i, "").replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 128);
  parts.go.disabled = false;
  tell("", "");
}

function tell(kind, text) {
  parts.result.dataset.kind = kind;
  say(parts.result, text);
}

async function send() {
  const name = parts.name.value;
  sending = true;
  parts.go.disabled = true;
  parts.progress.hidden = false;
  parts.progress.value = 0;
  try {
    const added = await admin.add(name, file, (share) => {
      parts.progress.value = share;
      if (share < 1) tell("info", t("add_sent", { share: percent(share) }));
      else {
        parts.progress.removeAttribute("value");
        tell("info", t("add_checking"));
      }
    });
    const took = ms(added.versions.reduce((all, version) => all + version.load_ms, 0));
    if (added.served) tell("good", t("add_done", { name, took }));
    else tell("warn", t("add_waits", { name, reason: added.reason ?? "" }));
    file = null;
    parts.input.value = "";
    parts.name.value = "";
    say(parts.what, t("add_drop"));
  } catch (error) {
    tell("bad", error.code === "unreachable" ? t("add_lost") : error.message);
    parts.go.disabled = false;
  } finally {
    sending = false;
    parts.progress.hidden = true;
  }
}
