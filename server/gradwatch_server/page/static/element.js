// Elements and text: the one place where what others named (runs, layers, hosts) reaches the page.

/**
 * Make an element.
 *
 * @param {string} tag
 * @param {Object<string, any>} settings attributes; `on…` are listeners, `class` is the class,
 *   false, null and undefined leave an attribute out, true sets an empty one
 * @param {...(Node|string|number|null|undefined|false|Array)} children text is text, never markup
 * @returns {HTMLElement}
 */
export function element(tag, settings = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  append(made, children);
  return made;
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
