// Drawings that lie over a picture, in the picture's own pixels.

import { h, s } from "./dom.js";
import { percent } from "./format.js";
import { t } from "./i18n.js";

const COLOURS = 6;
const MASK = [0, 114, 178]; // a blue that is told apart from skin, grass and sky by most people
const STRENGTH = 0.55;

const overlay = (width, height, label, ...children) =>
  s("svg", { viewBox: `0 0 ${width} ${height}`, class: "over", role: "img", "aria-label": label }, ...children);

/** Boxes with their labels; the better ones on top. Sizes follow the picture's, so that all stays legible. */
export function boxes(detections, width, height) {
  const unit = Math.max(width, height) / 100;
  const font = unit * 3.4;
  const drawn = detections.map(({ label, score, box: [x1, y1, x2, y2] }, i) => {
    const words = `${label} ${percent(score)}`;
    const wide = Math.min(width, measured(words, font) + unit * 1.6);
    const left = Math.max(0, Math.min(x1, width - wide));
    const top = y1 >= font * 1.5 ? y1 - font * 1.5 : y1;
    return s(
      "g",
      { class: `box b${i % COLOURS}` },
      s("rect", { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1), rx: unit * 0.6, class: "edge" }),
      s("rect", { x: left, y: top, width: wide, height: font * 1.5, rx: unit * 0.5, class: "plate" }),
      s("text", { x: left + unit * 0.8, y: top + font * 1.08, "font-size": font, text: words }),
    );
  });
  const words = detections.map(({ label, score }) => `${label} ${percent(score)}`).join(", ");
  return overlay(width, height, t("boxes_of", { words: words || "–" }), ...drawn.reverse());
}

/** The width of a text in the box's typeface, as css/try.css has it. */
function measured(text, size) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `600 ${size}px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif`;
  return pen.measureText(text).width;
}

/** Outlines of lines of text, each with its text as a title. */
export function lines(found, width, height) {
  const drawn = found.map(({ text, score, quad }) =>
    s("polygon", { points: quad.map((point) => point.join(",")).join(" "), class: "line" }, s("title", { text: `${text} (${percent(score)})` })),
  );
  return overlay(width, height, t("lines_of", { count: found.length }), ...drawn);
}

/** The mask, a grey PNG in base64, as a veil of one colour. */
export async function mask(base64, width, height) {
  const image = h("img", { src: `data:image/png;base64,${base64}`, alt: "" });
  await image.decode();
  const canvas = h("canvas", { width, height, class: "over", role: "img", "aria-label": t("mask_of") });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, 0, 0, width, height);
  const pixels = pen.getImageData(0, 0, width, height);
  const data = pixels.data;
  for (let i = 0; i < data.length; i += 4) {
    data[i + 3] = data[i] * STRENGTH;
    [data[i], data[i + 1], data[i + 2]] = MASK;
  }
  pen.putImageData(pixels, 0, 0);
  return canvas;
}
