// The layers of a picture that are worst, as a table of words.

import { isBad, ratioOf, valueOf, wordOf } from "./codes.js";
import { button, nameOf, table } from "../element.js";
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
  const shown = rows.slice(0, MOST_ROWS);
  return table(
    `The ${count(shown.length, "layer")} that are worst in these steps`,
    ["layer", "first NaN or Inf", "steps with NaN or Inf", "now", "usual", "now against usual"],
    shown.map(({ name, first, bad, now, usual }) => [
      button(nameOf(name, 80), () => page.go({ layer: name, step: first ?? undefined }), {
        class: "plain",
      }),
      first === null ? "none" : whole(first),
      whole(bad),
      wordOf(now) ?? short(valueOf(now)),
      short(valueOf(usual)),
      times(ratioOf(now, usual)),
    ]),
  );
}
