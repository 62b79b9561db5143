// The call that was just made, to copy: for a shell, Python and JavaScript, with nothing but what these bring along.

import { copy, h, say } from "./dom.js";
import { t } from "./i18n.js";

const KINDS = [["curl", curl], ["Python", python], ["JavaScript", javascript]];
let tabs = [];
let panel = null;
let code = null;
let button = null;
let now = 0;
let last = null;

export function start(parent) {
  tabs = KINDS.map(([name], i) =>
    h("button", { type: "button", role: "tab", id: `code-${name}`, "aria-controls": "code-panel", onclick: () => select(i), onkeydown: (event) => moved(event, i), text: name }),
  );
  code = h("code");
  button = h("button", { type: "button", id: "copy", onclick: async () => said(await copy(code.textContent)) });
  panel = h("div", { role: "tabpanel", id: "code-panel" }, h("pre", { tabindex: 0, id: "code" }, code));
  parent.append(h("div", { class: "between" }, h("div", { role: "tablist", class: "tabs", "aria-label": "curl, Python, JavaScript" }, tabs), button), panel);
  select(0);
}

export function translated() {
  say(button, t("copy"));
}

/** `request`: {path, type} and either `file` (its name) or `text`. `keyed`: a key is sent. */
export function show(request, keyed) {
  last = { url: location.origin + request.path, keyed, ...request };
  draw();
}

function said(done) {
  say(button, t(done ? "copied" : "not_copied"));
  setTimeout(() => say(button, t("copy")), 2000);
}

function moved(event, i) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  select((i + step + KINDS.length) % KINDS.length);
  tabs[now].focus();
}

function select(i) {
  now = i;
  tabs.forEach((tab, at) => {
    tab.setAttribute("aria-selected", String(at === i));
    tab.tabIndex = at === i ? 0 : -1;
  });
  panel.setAttribute("aria-labelledby", tabs[i].id);
  draw();
}

function draw() {
  if (last) say(code, KINDS[now][1](last));
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const literal = (text) => JSON.stringify(text); // also a string of Python's
const long = (text) => (text.length > 600 ? `${text.slice(0, 600)}…` : text);

function curl({ url, type, file, text, keyed }) {
  const key = keyed ? `-H 'X-API-Key: YOUR-KEY' ` : "";
  if (file) return `curl ${key}-F file=@${/[^\w.-]/.test(file) ? quoted(file) : file} ${quoted(url)}`;
  return `curl ${key}-H 'Content-Type: ${type}' -d ${quoted(long(text))} ${quoted(url)}`;
}

function python({ url, type, file, text, keyed }) {
  const headers = `{"Content-Type": ${literal(type)}${keyed ? `, "X-API-Key": "YOUR-KEY"` : ""}}`;
  const body = file ? `from pathlib import Path\n\nbody = Path(${literal(file)}).read_bytes()` : `\nbody = ${literal(long(text))}.encode()`;
  return `import json
import urllib.request
${body}
request = urllib.request.Request(${literal(url)}, body, ${headers})
with urllib.request.urlopen(request) as answer:
    print(json.load(answer))
`;
}

function javascript({ url, type, file, text, keyed }) {
  const headers = `{ "Content-Type": ${literal(type)}${keyed ? `, "X-API-Key": "YOUR-KEY"` : ""} }`;
  const body = file ? `import { readFile } from "node:fs/promises";\n\nconst body = await readFile(${literal(file)});` : `const body = ${literal(long(text))};`;
  return `${body}
const answer = await fetch(${literal(url)}, {
  method: "POST",
  headers: ${headers},
  body,
});
console.log(JSON.stringify(await answer.json()));
`;
}
