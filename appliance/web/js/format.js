// Numbers and times in the page's language.

import { language } from "./i18n.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const made = new Map();

function numbers(digits) {
  const name = `${language()} ${digits}`;
  if (!made.has(name)) made.set(name, new Intl.NumberFormat(language(), { maximumFractionDigits: digits }));
  return made.get(name);
}

export const number = (value, digits = 0) => numbers(digits).format(value);

/** Bytes in the largest unit that leaves at least 1. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${number(Math.sign(value) * size, size < 10 && unit > 1 ? 1 : 0)} ${UNITS[unit]}`;
}

/** Milliseconds; seconds from ten thousand on. */
export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return `${number(value / 1000, 1)} s`;
  return `${number(value, value < 10 ? 2 : value < 100 ? 1 : 0)} ms`;
}

export const rate = (value) => number(value, value < 1 ? 2 : value < 10 ? 1 : 0);
export const percent = (share) => `${number(share * 100, 1)} %`;

/** A moment in Unix seconds, with the day where it is not today's. */
export function when(seconds) {
  const moment = new Date(seconds * 1000);
  const today = moment.toDateString() === new Date().toDateString();
  const options = today ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "medium" };
  return new Intl.DateTimeFormat(language(), options).format(moment);
}
