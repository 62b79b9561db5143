// Building and keeping up to date what is on the page. Text is only ever set as text.

/** An element. `props`: class, text, and attributes; `on…` are listeners; null and false leave one out. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "class") element.setAttribute("class", value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export const $ = (id) => document.getElementById(id);

/** Sets a text only where it is another one: a screen reader is told of changes. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Children of `parent`, one for each item, kept by key: `make(item)` builds one, and is called again where
 * `sign(item)` has changed. The focus stays where it was, by the focused element's `data-act`.
 */
export function keyed(parent, items, key, sign, make) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const name = String(key(item));
    const mark = sign(item);
    const known = old.get(name);
    if (known && known.mark === mark) return known;
    const made = make(item);
    made.dataset.key = name;
    made.mark = mark;
    if (known?.contains(document.activeElement)) made.wakes = document.activeElement.dataset.act;
    return made;
  });
  if (wanted.length === parent.children.length && wanted.every((child, i) => child === parent.children[i])) return;
  parent.replaceChildren(...wanted);
  for (const child of wanted) {
    if (!child.wakes) continue;
    child.querySelector(`[data-act="${child.wakes}"]`)?.focus();
    delete child.wakes;
  }
}

/** Copies a text; true when it is done. Without https, only this machine's own pages may use the clipboard. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
