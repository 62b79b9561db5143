// What the person should know now: news that pass, and remarks that stay as long as they are true.

import { $, h, keyed } from "./dom.js";
import { t } from "./i18n.js";

const PASSES_MS = 12000;
const MOST = 4;
const news = [];
let standing = [];
let count = 0;

/** `kind`: info, good, warn, bad. The newest stay longest; errors until they are closed. */
export function notice(kind, text) {
  const entry = { id: `n${++count}`, kind, text };
  news.push(entry);
  while (news.length > MOST) news.shift();
  if (kind !== "bad") setTimeout(() => close(entry), PASSES_MS);
  draw();
}

function close(entry) {
  const index = news.indexOf(entry);
  if (index >= 0) news.splice(index, 1);
  draw();
}

/** The status's own notes, models that have failed, and a lost connection. */
export function remarks(status, link) {
  standing = status.notes.map((text) => ({ id: `s${text}`, kind: "warn", text }));
  for (const { name, error } of status.models)
    if (error) standing.push({ id: `m${name}`, kind: "warn", text: t("model_failed", { name, error }) });
  if (status.restart_needed?.length)
    standing.push({ id: "restart", kind: "info", text: t("restart_needed", { names: status.restart_needed.join(", ") }) });
  if (link === "down") standing.push({ id: "down", kind: "bad", text: t("link_down") });
  draw();
}

function draw() {
  keyed(
    $("notices"),
    [...standing, ...news],
    (entry) => entry.id,
    (entry) => entry.text,
    (entry) =>
      h(
        "div",
        { class: "notice", "data-kind": entry.kind },
        h("span", { text: entry.text }),
        entry.id.startsWith("n")
          ? h("button", { type: "button", class: "icon", text: "×", "aria-label": t("close"), onclick: () => close(entry) })
          : null,
      ),
  );
}
