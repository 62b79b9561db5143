// What came back: the picture with boxes, mask or lines on it, labels as bars, the times, and the JSON itself.

import { $, copy, h, say } from "./dom.js";
import { boxes, lines, mask } from "./draw.js";
import { ms, number, percent } from "./format.js";
import { t } from "./i18n.js";

const MOST_TEXT = 4000;
let shown = null; // the object URL of the picture that is shown

export function clear() {
  put(h("p", { class: "muted empty", text: t("answer_empty") }));
}

/** `error`: what to tell instead of an answer. */
export function problem(error) {
  const later = error.retryMs ? ` ${t("retry_after", { time: ms(error.retryMs) })}` : "";
  put(h("p", { class: "fault bad", role: "alert" }, error.code ? h("code", { text: error.code }) : null, ` ${error.message}${later}`));
}

export async function answerOf(task, result, picture, headers, took) {
  const parts = [times(headers, took)];
  if (picture) parts.push(await figure(task, result, picture));
  parts.push(list(task, result), raw(result));
  put(...parts.filter(Boolean));
  say($("answer-told"), `${t("answer")}: ${spoken(task, result)}`);
}

/** The answer in a few words, for who does not see the picture. */
function spoken(task, result) {
  if (task === "segment") return t("covers", { share: percent(result.coverage) });
  if (task === "ocr") return result.text || t("nothing_read");
  const found = (result.labels ?? result.detections ?? []).map(({ label, score }) => `${label} ${percent(score)}`);
  return found.slice(0, 5).join(", ") || t(task === "detect" ? "nothing_found" : "done");
}

function put(...children) {
  $("answer").replaceChildren(...children);
}

function times(headers, took) {
  const found = Object.fromEntries([...(headers.get("server-timing") ?? "").matchAll(/(\w+);dur=([\d.]+)/g)].map((one) => [one[1], Number(one[2])]));
  const rows = [["time_queue", ms(found.queue)], ["time_infer", ms(found.infer)], ["time_total", ms(found.total)], ["time_browser", ms(took)], ["device", headers.get("x-device") ?? "–"]];
  return h("dl", { class: "times" }, rows.map(([name, value]) => h("div", {}, h("dt", { text: t(name) }), h("dd", { text: value }))));
}

async function figure(task, result, picture) {
  const url = URL.createObjectURL(picture);
  const image = h("img", { src: url, alt: t("your_picture") });
  const frame = h("div", { class: "frame" }, image);
  try {
    await image.decode();
  } catch {
    URL.revokeObjectURL(url);
    return h("p", { class: "muted", text: t("not_shown") });
  }
  if (shown) URL.revokeObjectURL(shown);
  shown = url;
  const size = [result.width ?? image.naturalWidth, result.height ?? image.naturalHeight];
  if (task === "detect") frame.append(boxes(result.detections, ...size));
  if (task === "ocr") frame.append(lines(result.lines, ...size));
  if (task === "segment") frame.append(await mask(result.mask, ...size));
  return h("figure", { class: "picture" }, frame);
}

function list(task, result) {
  if (task === "classify") return bars(result.labels.map((label) => [label.label, label.score]));
  if (task === "detect") {
    if (!result.detections.length) return h("p", { class: "muted", text: t("nothing_found") });
    return bars(result.detections.map((one, i) => [one.label, one.score, `b${i % 6}`]));
  }
  if (task === "segment") return h("p", { text: t("covers", { share: percent(result.coverage) }) });
  if (task === "ocr") return read(result);
  return null;
}

function bars(rows) {
  return h(
    "ol",
    { class: "bars" },
    rows.map(([label, score, colour]) => {
      const bar = h("span", { class: `score ${colour ?? ""}` });
      bar.style.setProperty("--share", score);
      return h("li", {}, h("span", { text: label }), bar, h("b", { text: percent(score) }));
    }),
  );
}

function read(result) {
  if (!result.lines.length) return h("p", { class: "muted", text: t("nothing_read") });
  const button = h("button", { type: "button", text: t("copy_text"), onclick: async () => say(button, t((await copy(result.text)) ? "copied" : "not_copied")) });
  return h("div", { class: "read" }, h("pre", { tabindex: 0, role: "region", "aria-label": t("text_found"), text: result.text }), button);
}

function raw(result) {
  const short = JSON.stringify(result, (name, value) => (name === "mask" ? `${value.slice(0, 24)}… (${number(value.length)})` : value), 2);
  const text = short.length > MOST_TEXT ? `${short.slice(0, MOST_TEXT)}\n…` : short;
  return h("details", { open: !("labels" in result || "detections" in result || "mask" in result || "lines" in result) }, h("summary", { text: "JSON" }), h("pre", { tabindex: 0, role: "region", "aria-label": "JSON", text }));
}
