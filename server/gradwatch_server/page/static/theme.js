// Light or dark: as the system says, unless the person chose.

import { keep, recall } from "./choices.js";

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
