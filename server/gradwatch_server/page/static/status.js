// How a status is written: mark, word, phase; and the icon of the tab, one file for each.

import { element } from "./element.js";
import { markOf } from "./words.js";

const link = document.getElementById("favicon");
const base = document.querySelector("meta[name=gradwatch-static]").content;

/** Return the mark of a status or severity, in its colour. */
export function mark(status) {
  return element("span", { class: `mark is-${status}`, "aria-hidden": "true" }, markOf(status));
}

/** Return a status or a severity with its mark, and what stands after it: `✖ critical · running`. */
export function statusOf(status, after) {
  return element(
    "span.status",
    mark(status),
    element("span", { class: `is-${status}` }, status),
    after && element("span.phase", `· ${after}`),
  );
}

/** Show a status in the tab. */
export function setIcon(status) {
  const href = `${base}/icons/${status}.svg`;
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
}
