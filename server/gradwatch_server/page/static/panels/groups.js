// The named groups of layers: their norms, and how they compare.

import { element, nameOf } from "../element.js";
import { short, whole } from "../numbers.js";

/** Return what `/groups` says; of the ratios those that the run's health shows. */
export function groupsOf(answer, shown) {
  if (!answer.groups.length) {
    const how = element("code", {}, "attach(groups=…)");
    return element("p", { class: "soft" }, "No named groups: ", how, " names them.");
  }
  const ratiosShown = shown ?? answer.ratios;
  const cell = (text) => element("td", { class: "number" }, text);
  const rows = answer.groups.map((group) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, nameOf(group.name)),
      cell(whole(group.layers)),
      cell(short(group.l2)),
    ),
  );
  const ratios = Object.entries(ratiosShown).map(([name, ratio]) =>
    element("li", {}, nameOf(name), ` ${short(ratio)}`),
  );
  return [
    element(
      "table",
      {},
      element("caption", { class: "unseen" }, "Groups"),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ["group", "layers", "L2 norm"].map((head, at) =>
            element("th", { scope: "col", class: at ? "number" : "" }, head),
          ),
        ),
      ),
      element("tbody", {}, rows),
    ),
    element("ul", { class: "row", "aria-label": "Ratios of root mean squares" }, ratios),
  ];
}
