// The layers of a picture that are worst, as a table of words.

import { isBad, ratioOf, valueOf, wordOf } from "./codes.js";
import { button, element, nameOf } from "../element.js";
import { count, short, times, whole } from "../numbers.js";

const MOST_ROWS = 50;

/** Return the layers that are worst at any of the steps of a picture; a click opens one. */
export function worstTable(cells, page) {
  const rows = cells.names.map((name, layer) => {
    const row = {
      name,
      worst: 0,
      first: null,
      bad: 0,
      now: cells.at(layer, cells.columns - 1),
      usual: cells.usual[(cells.columns - 1) * cells.rows + layer],
    };
    for (let column = 0; column < cells.columns; column += 1) {
      row.worst = Math.max(row.worst, cells.urgency[column * cells.rows + layer]);
      if (isBad(cells.at(layer, column))) {
        row.bad += 1;
        row.first ??= cells.steps[column];
      }
    }
    return row;
  });
  rows.sort((one, other) => other.worst - one.worst || (one.first ?? 0) - (other.first ?? 0));
  const heads = [
    "layer",
    "first NaN or Inf",
    "steps with NaN or Inf",
    "now",
    "usual",
    "now against usual",
  ];
  const drawn = rows.slice(0, MOST_ROWS).map((row) =>
    element(
      "tr",
      {},
      element(
        "th",
        { scope: "row" },
        button(
          nameOf(row.name, 80),
          () => page.go({ layer: row.name, step: row.first ?? undefined }),
          { class: "plain" },
        ),
      ),
      [
        row.first === null ? "none" : whole(row.first),
        whole(row.bad),
        wordOf(row.now) ?? short(valueOf(row.now)),
        short(valueOf(row.usual)),
        times(ratioOf(row.now, row.usual)),
      ].map((text) => element("td", { class: "number" }, text)),
    ),
  );
  return element(
    "table",
    {},
    element(
      "caption",
      {},
      `The ${count(Math.min(MOST_ROWS, rows.length), "layer")} that are worst in these steps`,
    ),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        heads.map((head, at) => element("th", { scope: "col", class: at ? "number" : "" }, head)),
      ),
    ),
    element("tbody", {}, drawn),
  );
}
