// The numbers of a chart as a table.

import { element } from "../element.js";
import { whole } from "../numbers.js";
import { nullable, valueText } from "./scale.js";

const MOST_ROWS = 50;

/**
 * Return the newest buckets of a chart.
 *
 * @param {import("./chart.js").ChartData} data
 * @param {{title: string, format: (value: number) => string}} settings
 */
export function chartTable({ curves, x, width }, { title, format }) {
  const first = width > 1 ? `steps, ${width} each` : "step";
  const heads = curves.flatMap(({ label }) =>
    width > 1 ? [`${label}, last`, "least", "largest"] : [label],
  );
  const cellsOf = (at) =>
    curves.flatMap((curve) => {
      const last = valueText(curve, at, width, format);
      const ends = [curve.min, curve.max].map((values) => format(nullable(values[at])));
      return width > 1 ? [last, ...ends] : [last];
    });
  const rows = [];
  for (let at = x.length - 1; at >= 0 && rows.length < MOST_ROWS; at -= 1) {
    const step = element("th", { scope: "row", class: "number" }, whole(x[at]));
    const cells = cellsOf(at).map((text) => element("td", { class: "number" }, text));
    rows.push(element("tr", {}, step, cells));
  }
  const head = [first, ...heads].map((text) =>
    element("th", { scope: "col", class: "number" }, text),
  );
  return element(
    "table",
    {},
    element("caption", {}, `${title}, newest first`),
    element("thead", {}, element("tr", {}, head)),
    element("tbody", {}, rows),
  );
}
