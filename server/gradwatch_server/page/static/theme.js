// Light or dark: as the system says, unless the person chose.

import { keep, recall } from "./choices.js";

const known = new Map(); // colours by theme and name
let probe = null;

const chosen = recall("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

/** Return which theme is in force: `light` or `dark`. */
export function themeInForce() {
  const own = document.documentElement.dataset.theme;
  if (own) return own;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Change to the other one, and keep it. */
export function toggleTheme() {
  const other = themeInForce() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = other;
  keep("theme", other);
}

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
