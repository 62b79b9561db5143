// What keeps this machine from running models, or its GPU from being used: asked for by the person, for it takes a while.

import { admin } from "./api.js";
import { $, h } from "./dom.js";
import { t } from "./i18n.js";

const KINDS = { ok: "good", warning: "warn", failed: "bad" };
let found = null;
let button = null;

export function start() {
  button = h("button", { type: "button", id: "examine", onclick: examine });
  $("doctor").append(h("p", { class: "row" }, button, h("span", { class: "muted small", "data-t": "doctor_why" })), h("div", { id: "findings", role: "status" }));
  translated();
}

export function translated() {
  button.textContent = t("doctor_go");
  $("doctor").querySelector("[data-t]").textContent = t("doctor_why");
  draw();
}

async function examine() {
  button.disabled = true;
  $("findings").replaceChildren(h("p", { class: "muted", text: t("doctor_looks") }));
  try {
    found = (await admin.doctor()).checks;
    draw();
  } catch (error) {
    $("findings").replaceChildren(h("p", { class: "fault bad", text: error.message }));
  } finally {
    button.disabled = false;
  }
}

function draw() {
  if (!found) return;
  const line = ({ check, verdict, found: words, cure }) =>
    h(
      "li",
      {},
      h("span", { class: "pill", "data-kind": KINDS[verdict] ?? "quiet", text: t(`verdict_${verdict}`) }),
      h("div", {}, h("b", { text: check }), ` ${words}`, cure ? h("p", { class: "cure", text: cure }) : null),
    );
  $("findings").replaceChildren(h("ul", { class: "findings" }, found.map(line)));
}
