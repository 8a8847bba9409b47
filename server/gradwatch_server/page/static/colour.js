// The colours of the theme as canvases need them: what style sheets call by name, worked out.

import { themeInForce } from "./theme.js";

const known = new Map();
let probe = null;

/** Return a colour of the theme in force, as `--ink` or `--line-1`. */
export function colourOf(name) {
  const key = `${themeInForce()} ${name}`;
  if (!known.has(key)) known.set(key, workOut(name));
  return known.get(key);
}

// Both themes stand in one value, `light-dark(…)`: only the colour of an element says which holds.
function workOut(name) {
  probe ??= document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
