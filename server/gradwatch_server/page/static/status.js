// How a status is written: mark, word, phase.

import { element } from "./element.js";
import { markOf } from "./words.js";

/** Return `✖ critical · running`; `before` is what it says while the page is stale. */
export function statusOf(status, phase) {
  return element(
    "span",
    { class: "status" },
    element("span", { class: `mark is-${status}`, "aria-hidden": "true" }, markOf(status)),
    element("span", { class: `is-${status}` }, status),
    phase ? element("span", { class: "phase" }, `· ${phase}`) : null,
  );
}

/** Return the severity of an alert with its mark. */
export function severityOf(severity, rest) {
  return element(
    "span",
    { class: "status" },
    element("span", { class: `mark is-${severity}`, "aria-hidden": "true" }, markOf(severity)),
    element("span", { class: `is-${severity}` }, severity),
    rest ? element("span", { class: "phase" }, `· ${rest}`) : null,
  );
}
