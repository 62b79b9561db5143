// A conversation with a language model: what was said, what is being said, how fast, and how much room there is.

import { answer } from "./chat_stream.js";
import { spoken } from "./api.js";
import { $, h, keyed, say } from "./dom.js";
import { ms, number, rate } from "./format.js";
import { t } from "./i18n.js";

const NEAR_END = 60; // pixels: who has scrolled up farther than this reads, and is not taken to the end

let parts = {};
let about = null; // of the chosen model: {id, context_length}
let said = []; // the conversation: {role, content}
let last = null; // of the newest answer: {tokens, exact, firstMs, perS}
let used = 0; // tokens of the context, as last told
let running = null;

export function start(form) {
  const model = h("select", { id: "chat-model", onchange: () => changed() });
  const system = h("textarea", { id: "chat-system", rows: 2 });
  const temperature = h("input", { id: "chat-temperature", type: "number", min: 0, max: 2, step: 0.1 });
  const most = h("input", { id: "chat-most", type: "number", min: 1, step: 1 });
  const words = h("textarea", { id: "chat-words", rows: 2, onkeydown: (event) => key(event) });
  const send = h("button", { type: "submit", class: "primary", id: "chat-send", "data-t": "chat_send" });
  const stop = h("button", { type: "button", id: "chat-stop", "data-t": "chat_stop", hidden: true, onclick: () => running?.abort() });
  parts = { model, system, temperature, most, words, send, stop };
  const labelled = (text, field) => h("label", {}, h("span", { "data-t": text }), field);
  $("chat-how").append(
    labelled("model", model),
    h("details", {}, h("summary", { "data-t": "chat_settings" }),
      h("div", { class: "settings" }, labelled("chat_system", system), labelled("chat_temperature", temperature), labelled("chat_most", most)),
    ),
  );
  form.append(labelled("chat_message", words), h("div", { class: "row end" }, h("span", { class: "muted small grow", "data-t": "chat_keys" }), stop, send));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  $("chat-new").addEventListener("click", fresh);
  fresh();
  translated();
}

export function translated() {
  for (const element of $("chat").querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const field of [parts.temperature, parts.most]) field.placeholder = t("default");
  for (const element of $("chat-log").querySelectorAll(".said.user > h3")) element.textContent = t("chat_you");
  facts();
}

/** A language model is there, or comes back after an engine's end: there is something to talk to. */
export const possible = (status) => status.models.some(speaks);

function speaks(model) {
  return model.task === "generate" && (model.ready || model.asleep || model.versions.some((one) => one.state === "LOADING"));
}

export function show(status) {
  keyed(
    parts.model,
    status.models.filter(speaks),
    (model) => model.name,
    () => "",
    (model) => h("option", { value: model.name, text: model.name }),
  );
  if (!$("chat").hidden) changed();
}

/** The view was opened or left. */
export function opened(now) {
  if (now) changed();
}

async function changed() {
  const name = parts.model.value;
  if (!name || about?.id === name) return;
  about = { id: name, context_length: null };
  try {
    const found = await spoken(name);
    if (about.id === name) about = found;
  } catch {
    // It can be talked to all the same; only its room is not known.
  }
  parts.most.max = about.context_length ?? "";
  facts();
}

function fresh() {
  running?.abort();
  running = last = null;
  used = 0;
  said = [];
  busy(false);
  $("chat-log").replaceChildren(hint());
  fault(null);
  facts();
}

const hint = () => h("p", { class: "muted empty", "data-t": "chat_empty", text: t("chat_empty") });

function key(event) {
  // While a word is put together from several keys (Chinese, Japanese), Enter chooses it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) ask();
}

function bubble(role, text) {
  const words = h("div", { class: "words" }, document.createTextNode(text));
  const who = role === "user" ? t("chat_you") : parts.model.value;
  const made = h("article", { class: `said ${role}` }, h("h3", { class: "small muted", text: who }), words);
  $("chat-log").querySelector(".empty")?.remove();
  $("chat-log").append(made);
  toEnd();
  return { made, text: words.firstChild };
}

const atEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;

function toEnd() {
  $("chat-log").scrollTop = $("chat-log").scrollHeight;
}

function ask() {
  const content = parts.words.value.trim();
  if (!content || running || !parts.model.value) return;
  parts.words.value = "";
  said.push({ role: "user", content });
  bubble("user", content);
  reply();
}

function request() {
  const system = parts.system.value.trim();
  const wished = {};
  if (parts.temperature.value) wished.temperature = Number(parts.temperature.value);
  if (parts.most.value) wished.max_tokens = Number(parts.most.value);
  return { model: parts.model.value, messages: [...(system ? [{ role: "system", content: system }] : []), ...said], ...wished };
}

async function reply() {
  const mine = (running = new AbortController());
  const started = performance.now();
  const { made, text } = bubble("assistant", "");
  const heard = { tokens: 0, exact: false, firstMs: null, perS: null };
  made.dataset.state = "comes";
  last = heard;
  busy(true);
  fault(null);
  facts();
  let first = 0;
  let begin = 0; // characters of the first piece
  let end = null;
  let wrong = null;
  try {
    for await (const piece of answer(request(), mine.signal)) {
      if (piece.text) {
        const now = performance.now();
        const follow = atEnd($("chat-log"));
        text.appendData(piece.text);
        heard.tokens += 1; // nearly always a piece is a token; the usage at the end tells it exactly
        if (!first) [first, begin] = [now, piece.text.length];
        heard.firstMs ??= now - started;
        if (now - first > 200) heard.perS = ((heard.tokens - 1) * 1000) / (now - first);
        if (follow) toEnd();
      } else if (piece.finish) end = piece.finish;
      else if (piece.usage) settle(heard, piece.usage, performance.now() - first, text.length - begin, text.length);
      if (running === mine) facts();
    }
    made.dataset.state = end === "length" ? "full" : "whole";
  } catch (error) {
    made.dataset.state = mine.signal.aborted ? "stopped" : "failed";
    wrong = mine.signal.aborted ? null : error;
  }
  if (running !== mine) return; // a new conversation was begun
  running = null;
  const stands = closed(made, text.data);
  fault(wrong, stands);
  busy(false);
  facts();
}

/** `took`: milliseconds since the first piece, after which `later` of all `characters` came. */
function settle(heard, usage, took, later, characters) {
  const tokens = usage.completion_tokens;
  Object.assign(heard, { tokens, exact: true });
  used = usage.total_tokens;
  // The first piece may be several tokens, which say nothing of the speed.
  if (later > 0 && took > 0) heard.perS = (tokens * (later / characters) * 1000) / took;
}

/** The answer has ended, one way or another; what there is of it belongs to the conversation. True if its question
 * stands there. */
function closed(made, content) {
  const { state } = made.dataset;
  if (content || state === "whole") said.push({ role: "assistant", content });
  const stands = said.at(-1).role === "assistant" || !takenBack(made);
  const remark = { stopped: "chat_stopped", full: "chat_full", failed: "chat_failed" }[state];
  if (remark) made.append(h("p", { class: `small ${state === "failed" ? "bad" : "muted"}`, "data-t": remark, text: t(remark) }));
  say($("chat-told"), remark ? t(remark) : t("chat_done", { tokens: number(last.tokens) }));
  return stands;
}

/** Nothing was answered: the question may be put in other words. False where the next is being written already. */
function takenBack(made) {
  const log = $("chat-log");
  made.remove();
  if (parts.words.value) return false;
  parts.words.value = said.pop().content;
  log.lastElementChild.remove();
  if (!said.length) log.replaceChildren(hint());
  return true;
}

/** What went wrong, and a way to have it tried again where the question stands. */
function fault(error, stands = false) {
  const again = () => {
    const log = $("chat-log");
    if (said.at(-1).role === "assistant") {
      said.pop();
      log.lastElementChild.remove();
    }
    reply();
  };
  $("chat-fault").replaceChildren(
    ...(error
      ? [
          h("div", { class: "fault", role: "alert" }, error.code ? h("code", { text: error.code }) : null, " ", h("span", { text: error.message })),
          stands ? h("button", { type: "button", id: "chat-again", "data-t": "chat_again", text: t("chat_again"), onclick: again }) : null,
        ].filter(Boolean)
      : []),
  );
}

function busy(now) {
  const inside = parts.stop.contains(document.activeElement) || parts.send.contains(document.activeElement);
  parts.stop.hidden = !now;
  parts.send.hidden = now;
  if (inside) (now ? parts.stop : parts.words).focus();
  if (now) say($("chat-told"), t("chat_comes"));
}

/** The line of numbers below the conversation. */
function facts() {
  const room = about?.context_length ?? null;
  const roughly = (value) => (last.exact ? value : `≈ ${value}`);
  const rows = [];
  if (last) {
    rows.push(["chat_speed", last.perS === null ? "–" : roughly(t("chat_per_s", { rate: rate(last.perS) }))]);
    rows.push(["chat_first", ms(last.firstMs)]);
    rows.push(["chat_tokens", last.tokens ? roughly(number(last.tokens)) : "–"]);
  }
  const least = last && !last.exact ? used + last.tokens : used; // what was asked this time is not counted yet
  const written = `${least > used ? "≥ " : ""}${number(least)}`;
  if (room) rows.push(["chat_context", t("chat_of", { used: written, room: number(room) })]);
  const box = $("chat-facts");
  if (box.children.length !== rows.length) box.replaceChildren(...rows.map(() => h("div", {}, h("dt"), h("dd"))));
  rows.forEach(([name, value], i) => {
    const [key, told] = box.children[i].children;
    say(key, t(name));
    say(told, value);
    box.children[i].id = name.replaceAll("_", "-");
  });
  $("chat-room").hidden = !room;
  $("chat-room").max = room ?? 1;
  $("chat-room").value = least;
}
