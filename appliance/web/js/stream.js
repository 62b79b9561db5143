// Server-sent events by fetch, because EventSource cannot send a key. Comes back by itself.

import { call } from "./api.js";

const QUIET_MS = 40000; // the appliance sends a comment every 15 s of quiet
const LONGEST_MS = 8000;

/**
 * Reads `path` for ever. `on.event(kind, data)` for each event; `on.link(state)` with "up", "down", or "locked" where
 * the key is missing and was not told. Gives a function that tries again at once.
 */
export function follow(path, on) {
  let wake = () => {};
  (async () => {
    let wait = 500;
    for (;;) {
      try {
        await once(path, on, () => (wait = 500));
        on.link("down");
      } catch (error) {
        on.link(error.status === 401 ? "locked" : "down");
        if (error.status === 401) wait = 600000;
      }
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, wait);
        wake = () => {
          clearTimeout(timer);
          wait = 500;
          resolve();
        };
      });
      wait = Math.min(wait * 2, LONGEST_MS);
    }
  })();
  return () => wake();
}

async function once(path, on, opened) {
  const ending = new AbortController();
  const response = await call("GET", path, { headers: { Accept: "text/event-stream" }, signal: ending.signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  on.link("up");
  opened();
  let text = "";
  let timer = 0;
  for (;;) {
    clearTimeout(timer);
    timer = setTimeout(() => ending.abort(), QUIET_MS);
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) hear(part, on);
  }
  clearTimeout(timer);
}

function hear(part, on) {
  let kind = "message";
  let data = "";
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (data) on.event(kind, JSON.parse(data));
}
