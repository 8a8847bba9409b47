// The list of all keys, and the switch that turns them off.

import { keep, recall } from "../choices.js";
import { button, element } from "../element.js";
import { openDialog } from "./dialog.js";

const CHOICE = "keys";
const HELP = [
  ["g r", "runs"],
  ["g a", "alerts: of this run, or of all"],
  ["/", "filter"],
  ["[ ]", "previous and next alert"],
  ["l", "follow the newest steps"],
  ["p", "pause, go on"],
  ["u", "UTC or local time"],
  ["y", "copy the address"],
  ["Esc", "one level up"],
  ["t", "as a table"],
  ["f", "one row for each module"],
  ["v", "change or size"],
  ["n N", "next and previous NaN, Inf or alert"],
  ["← ↑ → ↓", "in the heatmap: one cell; with Shift ten"],
  ["PgUp PgDn", "in the heatmap: one module"],
  ["Home End", "in the heatmap: first and last step"],
  ["Enter", "open the layer at this step"],
  ["+ - a d", "zoom and move in time; w s zoom as well"],
  ["z Z", "in the heatmap: fewer and more rows"],
  ["0", "all steps"],
];

/** Tell whether a person switched the keys off. */
export function isOff() {
  return recall(CHOICE) === "off";
}

/** List the keys. */
export function showKeys() {
  const switched = element("input", { type: "checkbox", id: "keys-on", checked: !isOff() });
  switched.addEventListener("change", () => {
    keep(CHOICE, switched.checked ? "on" : "off");
  });
  const rows = HELP.map(([keys, what]) => [
    element(
      "dt",
      keys.split(" ").map((key) => [element("kbd", key), " "]),
    ),
    element("dd", what),
  ]);
  const close = button("Close", () => shown.close(), { class: "push" });
  const shown = openDialog(
    "Keys",
    element("div.row", element("h2", "Keys"), close),
    element("dl.keys", rows),
    element("p", element("label", switched, " keys are on")),
  );
}
