// Light or dark: as the system says, unless the person chose.

import { themeInForce } from "./heatmap/palette.js";

const KEY = "gradwatch.theme";

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

const chosen = stored();
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

/** Change to the other one, and keep it. */
export function toggleTheme() {
  const other = themeInForce() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = other;
  try {
    localStorage.setItem(KEY, other);
  } catch {
    // a browser that keeps nothing
  }
}
