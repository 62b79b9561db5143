// The language of the page, and its texts in it.

import { TEXTS } from "./texts.js";

const COLUMNS = { en: 0, de: 1, zh: 2 };
const told = new Set();
let now = first();

function first() {
  const wishes = [localStorage.getItem("language"), ...(navigator.languages ?? [navigator.language])];
  return wishes.map((wish) => (wish ?? "").slice(0, 2).toLowerCase()).find((wish) => wish in COLUMNS) ?? "en";
}

export const language = () => now;

/** The text `key`; `{name}` in it becomes `values.name`. */
export function t(key, values = {}) {
  const row = TEXTS[key];
  if (!row) throw new Error(`no text '${key}'`);
  return row[COLUMNS[now]].replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** The text `key`, or `other` where there is none. */
export const maybe = (key, other) => (key in TEXTS ? t(key) : other);

/** `again()` is called when another language was chosen. */
export const onLanguage = (again) => told.add(again);

export function choose(language) {
  now = language in COLUMNS ? language : "en";
  localStorage.setItem("language", now);
  translate();
  for (const again of told) again();
}

/** Writes the texts of all elements that name one. */
export function translate(root = document) {
  document.documentElement.lang = now;
  for (const element of root.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of root.querySelectorAll("[data-t-label]"))
    element.setAttribute("aria-label", t(element.dataset.tLabel));
}
