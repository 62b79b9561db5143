// Whose the memory of each device is: ours by model, others', free, and the reserve that is left alone.

import { $, h, keyed } from "./dom.js";
import { bytes } from "./format.js";
import { t } from "./i18n.js";

const COLOURS = 8;

export function show(status) {
  const devices = Object.entries(status.memory).filter(([, ledger]) => ledger.known);
  const box = $("memory");
  if (!devices.length) {
    box.replaceChildren(h("p", { class: "muted", text: t("memory_unknown") }));
    return;
  }
  if (box.firstChild?.tagName === "P") box.replaceChildren();
  const known = new Map(status.devices.map((device) => [device.id, device]));
  const sharing = status.devices.filter((device) => device.kind === "unified"); // a GPU in the system's memory
  keyed(
    box,
    devices,
    ([id]) => id,
    ([, ledger]) => JSON.stringify(pieces(ledger)),
    ([id, ledger]) => (id === "cpu" && sharing.length ? drawn(`${sharing.map((device) => device.id).join(", ")}, cpu`, sharing[0], ledger) : drawn(id, known.get(id), ledger)),
  );
}

export function translated() {
  $("memory").replaceChildren();
}

/** [name, bytes, class]: what the bar is made of, from left to right. Rounded: each byte would draw it anew. */
function pieces(ledger) {
  const models = Object.entries(ledger.models)
    .filter(([, size]) => size > 0)
    .sort((a, b) => b[1] - a[1]);
  const shown = models.length > COLOURS ? models.slice(0, COLOURS - 1) : models;
  const rest = models.slice(shown.length).reduce((all, [, size]) => all + size, 0);
  const weights = Math.min(ledger.weights, ledger.ours);
  const reserve = Math.min(ledger.free, ledger.reserve);
  const parts = shown.map(([name, size], i) => [name, size, `m${i}`]);
  if (rest) parts.push([t("other_models"), rest, `m${COLOURS - 1}`]);
  parts.push(
    [t("mem_runtime"), ledger.ours - weights, "runtime"],
    [t("mem_others"), ledger.others, "others"],
    [t("mem_free"), ledger.free - reserve, "free"],
    [t("mem_reserve"), reserve, "reserve"],
  );
  return [...parts.map(([name, size, kind]) => [name, round(Math.max(0, size)), kind]), ["", ledger.total, ""]];
}

const round = (size) => Math.round(size / 2 ** 20) * 2 ** 20;

function drawn(id, device, ledger) {
  const parts = pieces(ledger).slice(0, -1);
  const words = parts.map(([name, size]) => `${name} ${bytes(size)}`).join(", ");
  const bar = h("div", { class: "membar", role: "img", "aria-label": `${id}: ${words}` });
  for (const [name, size, kind] of parts) {
    if (!size) continue;
    const piece = h("span", { class: `piece ${kind}`, title: `${name}: ${bytes(size)}` });
    piece.style.flexGrow = size / 2 ** 20;
    bar.append(piece);
  }
  const used = t("mem_used", { used: bytes(ledger.ours + ledger.others), total: bytes(ledger.total) });
  const about = device?.utilisation === null || device?.utilisation === undefined ? "" : ` · ${Math.round(device.utilisation * 100)} %`;
  const heat = device?.temperature_c ? ` · ${device.temperature_c} °C` : "";
  return h(
    "div",
    { class: "device-memory" },
    h("p", { class: "between" }, h("span", {}, h("b", { text: id }), ` ${device?.name ?? ""}${about}${heat}`), h("span", { class: "muted", text: used })),
    bar,
    h(
      "ul",
      { class: "legend" },
      parts.filter(([, size]) => size > 0).map(([name, size, kind]) => h("li", {}, h("i", { class: `piece ${kind}` }), h("span", { text: name }), h("b", { text: bytes(size) }))),
    ),
  );
}
