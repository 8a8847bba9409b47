// How a status is written: mark, word, phase; and the icon of the tab, one file for each.

import { element } from "./element.js";
import { markOf } from "./words.js";

const link = document.getElementById("favicon");
const base = document.querySelector("meta[name=gradwatch-static]").content;

/** Return `✖ critical · running`; `before` is what it says while the page is stale. */
export function statusOf(status, phase) {
  return element(
    "span.status",
    element("span", { class: `mark is-${status}`, "aria-hidden": "true" }, markOf(status)),
    element("span", { class: `is-${status}` }, status),
    phase ? element("span.phase", `· ${phase}`) : null,
  );
}

/** Return the severity of an alert with its mark. */
export function severityOf(severity, rest) {
  return element(
    "span.status",
    element("span", { class: `mark is-${severity}`, "aria-hidden": "true" }, markOf(severity)),
    element("span", { class: `is-${severity}` }, severity),
    rest ? element("span.phase", `· ${rest}`) : null,
  );
}

/** Show a status in the tab. */
export function setIcon(status) {
  const href = `${base}/icons/${status}.svg`;
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
}
