// One answer of a language model, as it comes.

import { call, CallError } from "./api.js";
import { t } from "./i18n.js";

const QUIET_MS = 45000; // while an answer waits, the appliance sends a comment every 15 s

/**
 * The pieces of the answer to `request`: {text}, at the end {finish} and {usage}. Throws CallError, also for an error
 * that ends the answer in its middle, and for one that breaks off.
 */
export async function* answer(request, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const quiet = new AbortController();
  const either = AbortSignal.any([signal, quiet.signal]);
  const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
  const response = await call("POST", "/v1/chat/completions", { body, headers, signal: either });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let timer = 0;
  try {
    for (;;) {
      timer = setTimeout(() => quiet.abort(), QUIET_MS);
      const { done, value } = await reader.read();
      clearTimeout(timer);
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        if (line === "data: [DONE]") return;
        yield* pieces(JSON.parse(line.slice(6)), response.status);
      }
    }
  } catch (error) {
    if (signal.aborted || error instanceof CallError) throw error;
  } finally {
    clearTimeout(timer);
    reader.cancel().catch(() => {});
  }
  throw new CallError(0, "broken_off", t("chat_broken_off"), null); // no [DONE]: it was not all
}

function* pieces({ error, choices = [], usage }, status) {
  if (error) throw new CallError(status, error.code, error.message, null);
  for (const { delta, finish_reason: finish } of choices) {
    if (delta.content) yield { text: delta.content };
    if (finish) yield { finish };
  }
  if (usage) yield { usage };
}
