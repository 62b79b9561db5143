// Every call to the appliance. The key, where one is needed, is asked for once and kept until the tab is closed.

const STORE = "api-key";
let key = sessionStorage.getItem(STORE) ?? "";
let asker = async () => null;
let asking = null;

/** An answer that is an error: the appliance's words, its code, and when to come back. */
export class CallError extends Error {
  constructor(status, code, message, retryMs) {
    super(message);
    Object.assign(this, { status, code, retryMs });
  }
}

export const hasKey = () => key !== "";

/** `ask(wrong)` gives the key, or null if the person does not want to tell it. */
export const onKeyNeeded = (ask) => {
  asker = ask;
};

/** Asks for the key; all who need it at the same time share the one question. True when there is a new one. */
export function askKey(wrong) {
  asking ??= asker(wrong).then((told) => {
    asking = null;
    if (told === null) return false;
    key = told;
    sessionStorage.setItem(STORE, key);
    return true;
  });
  return asking;
}

/** The tray opens the page with a code in its address, good once: it is changed for the key, and forgotten. */
export async function enterByCode() {
  const [, code] = location.hash.match(/^#code=([\w-]+)$/) ?? [];
  if (!code) return;
  window.history.replaceState(null, "", location.pathname);
  const response = await fetch("/api/session", { method: "POST", body: JSON.stringify({ code }), cache: "no-store" });
  if (!response.ok) return; // too old, or used: the key is asked for
  key = (await response.json()).key;
  sessionStorage.setItem(STORE, key);
}

const withKey = (headers) => (key ? { ...headers, "X-API-Key": key } : headers);

/** A response that is no error. Asks for the key where that is what is missing. */
export async function call(method, path, { body, headers = {}, signal } = {}) {
  for (;;) {
    const used = key;
    const response = await fetch(path, { method, body, headers: withKey(headers), signal, cache: "no-store" });
    if (response.ok) return response;
    if (response.status === 401 && (key !== used || (await askKey(used !== "")))) continue;
    throw await errorOf(response.status, await response.text());
  }
}

async function errorOf(status, text) {
  try {
    const { error, code } = JSON.parse(text);
    if (typeof error === "string") return new CallError(status, code ?? "", error, null);
    return new CallError(status, error.code, error.message, error.retry_after_ms ?? null);
  } catch {
    return new CallError(status, String(status), text.slice(0, 200), null);
  }
}

const json = async (path) => (await call("GET", path)).json();
const named = (model) => encodeURIComponent(model);

export const history = (since) => json(`/api/history?since=${since}`);
export const metadata = (model) => json(`/v2/models/${named(model)}`);
export const spoken = (model) => json(`/v1/models/${named(model)}`);

/** What needs the key's scope `admin`, where keys have scopes. */
export const admin = {
  pause: () => call("POST", "/api/pause"),
  resume: () => call("POST", "/api/resume"),
  load: (model) => call("POST", `/v2/repository/models/${named(model)}/load`),
  unload: (model) => call("POST", `/v2/repository/models/${named(model)}/unload`),
  pin: (model) => call("POST", `/api/models/${named(model)}/pin`),
  unpin: (model) => call("POST", `/api/models/${named(model)}/unpin`),
  doctor: () => json("/api/doctor"),
  add,
};

/** Sends a model; `progress(share)` is told how much of it has gone, 0 to 1. fetch has no such news. */
async function add(name, file, progress) {
  for (;;) {
    const used = key;
    const { status, text } = await sent(`/api/models?name=${named(name)}`, file, progress);
    if (status >= 200 && status < 300) return JSON.parse(text);
    if (status === 401 && (key !== used || (await askKey(used !== "")))) continue;
    if (status === 0) throw new CallError(0, "unreachable", "", null);
    throw await errorOf(status, text);
  }
}

function sent(path, file, progress) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    const done = () => resolve({ status: request.status, text: request.responseText });
    request.open("POST", path);
    for (const [name, value] of Object.entries(withKey({ "Content-Type": "application/octet-stream" })))
      request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => progress(event.loaded / Math.max(1, event.total)));
    request.upload.addEventListener("load", () => progress(1));
    request.addEventListener("load", done);
    request.addEventListener("error", done);
    request.send(file);
  });
}
