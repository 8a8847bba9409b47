// Elements and text: the one place where what others named (runs, layers, hosts) reaches the page.

/**
 * Make an element.
 *
 * @param {string} selector a tag and its classes: `p.soft.small`
 * @param {...any} parts first the attributes as a plain object, if there are any: `on…` are
 *   listeners, false, null and undefined leave an attribute out, true sets an empty one; then the
 *   children: nodes, texts, numbers, arrays of these; text is text, never markup
 * @returns {HTMLElement}
 */
export function element(selector, ...parts) {
  const [tag, ...classes] = selector.split(".");
  const made = document.createElement(tag);
  const settings = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [name, value] of Object.entries(settings)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  if (classes.length) made.classList.add(...classes);
  append(made, parts);
  return made;
}

/**
 * Return a table whose first column are heads of its rows, and the others numbers.
 *
 * @param {string|null} caption
 * @param {string[]} heads
 * @param {any[][]} rows the children of each cell; NaN and Inf are marked
 */
export function table(caption, heads, rows) {
  const columns = heads.map((text, at) => element(at ? "th.number" : "th", { scope: "col" }, text));
  const cells = ([first, ...others]) => [
    element("th", { scope: "row" }, first),
    others.map((text) => element(/NaN|Inf/.test(text) ? "td.number.bad" : "td.number", text)),
  ];
  return element(
    "div.scroll",
    element(
      "table",
      caption && element("caption", caption),
      element("thead", element("tr", columns)),
      element(
        "tbody",
        rows.map((row) => element("tr", cells(row))),
      ),
    ),
  );
}

/** Add children to a parent: nodes as they are, everything else as text. */
export function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/** Replace all that is in a parent. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/** Set the text of a node, if it is another one: an untouched text keeps its selection. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Control characters, and those that turn, join or hide what stands beside them.
const UNPRINTABLE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Return a name with everything that cannot be seen written out, as `\u202e`. */
export function printable(name) {
  return String(name).replace(
    UNPRINTABLE,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** Return a name of at most `most` characters, cut in the middle: ends tell layers apart. */
export function shorten(name, most = 120) {
  const text = printable(name);
  if (text.length <= most) return text;
  const tail = Math.ceil((most - 1) / 2);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(-tail)}`;
}

/** Return a name as an element that keeps its direction to itself; the whole of it is its title. */
export function nameOf(name, most = 120) {
  const whole = printable(name);
  const shown = shorten(name, most);
  return element("bdi", shown === whole ? {} : { title: whole.slice(0, 4096) }, shown);
}

/** Return a button. */
export function button(label, onclick, settings = {}) {
  return element("button", { type: "button", onclick, ...settings }, label);
}
