// Puts the page together: what the appliance tells goes to all parts, one of which is seen.

import { admin, enterByCode, hasKey, onKeyNeeded } from "./api.js";
import * as charts from "./charts.js";
import * as chat from "./chat.js";
import { $, h, say } from "./dom.js";
import { choose, language, maybe, onLanguage, t, translate } from "./i18n.js";
import * as doctor from "./doctor.js";
import { restarted } from "./engines.js";
import * as live from "./live.js";
import * as memory from "./memory.js";
import * as models from "./models.js";
import { ask as askForKey } from "./key.js";
import { notice, remarks } from "./notices.js";
import { follow } from "./stream.js";
import * as tryit from "./tryit.js";
import * as upload from "./upload.js";

const KINDS = { ready: "good", busy: "good", starting: "info", degraded: "warn", paused: "warn", stopped: "bad" };
const parts = [live, memory, models, chat, tryit];

let status = null;
let link = "down";
let restarts = new Map();

function show() {
  const state = link === "up" && status ? status.state : link === "locked" ? "locked" : "unreachable";
  $("state").dataset.kind = KINDS[state] ?? "bad";
  say($("state"), t(`state_${state}`));
  $("key").hidden = link !== "locked" && !hasKey();
  if (!status) return;
  const { running, reason, policy } = status.device;
  say($("device"), reason ? `${running ?? "–"} · ${reason}` : t("device_how", { device: running ?? "–", policy }));
  $("device").classList.toggle("warn", Boolean(reason));
  say($("version"), status.version);
  say($("pause"), t(status.queue.paused ? "resume" : "pause"));
  $("pause").disabled = link !== "up";
  document.title = `${t(`state_${state}`)} · Inference Appliance`;
  remarks(status, link);
  for (const part of parts) part.show(status);
  const tab = document.querySelector("nav [data-view=chat]");
  if (tab.hidden === chat.possible(status)) {
    tab.hidden = !tab.hidden;
    view();
  }
}

function seen(fresh) {
  for (const [name, reason] of restarted(restarts, fresh.engines))
    notice("warn", t(fresh.engines.length > 1 ? "one_restarted" : "engine_restarted", { name, reason }));
  restarts = new Map(fresh.engines.map((engine) => [engine.id, engine.restarts]));
  status = fresh;
  show();
}

function view() {
  const wanted = location.hash.replace("#/", "");
  const links = [...document.querySelectorAll("nav a:not([hidden])")];
  const name = links.some((entry) => entry.dataset.view === wanted) ? wanted : "live";
  for (const section of document.querySelectorAll(".view")) section.hidden = section.id !== name;
  for (const entry of document.querySelectorAll("nav a")) {
    if (entry.dataset.view === name) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  }
  if (name === "live") charts.visible();
  chat.opened(name === "chat");
  tryit.opened(name === "try");
}

function themeButton() {
  const now = document.documentElement.dataset.theme ?? "auto";
  say($("theme"), { auto: "◐", light: "☀", dark: "☾" }[now]);
  $("theme").setAttribute("aria-label", t("theme", { now: t(`theme_${now}`) }));
  $("theme").title = t("theme", { now: t(`theme_${now}`) });
}

$("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const next = { auto: "light", light: "dark", dark: "auto" }[root.dataset.theme ?? "auto"];
  if (next === "auto") delete root.dataset.theme;
  else root.dataset.theme = next;
  localStorage.setItem("theme", next);
  themeButton();
  charts.restyle();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.restyle());

$("pause").addEventListener("click", async () => {
  try {
    await (status.queue.paused ? admin.resume() : admin.pause());
  } catch (error) {
    notice("bad", error.message);
  }
});

$("language").value = language();
$("language").addEventListener("change", () => choose($("language").value));
onLanguage(() => {
  themeButton();
  for (const part of [...parts, upload, doctor]) part.translated();
  charts.restyle();
  show();
});

for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault()); // not opened
onKeyNeeded(askForKey);
await enterByCode();
window.addEventListener("hashchange", view);
translate();
themeButton();
charts.start($("charts"));
doctor.start();
upload.start($("add"));
chat.start($("chat-form"));
tryit.start($("ask"));
view();
show();
const again = follow("/api/events", {
  event(kind, data) {
    if (kind === "status") seen(data);
    else if (kind === "power") notice("info", maybe(`power_${data.state}`, data.state));
  },
  link(state) {
    link = state;
    if (state === "up") charts.refresh();
    show();
  },
});
$("key").addEventListener("click", async () => {
  if (await askForKey.again()) again();
});
