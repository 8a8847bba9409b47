// What the colours and marks of the heatmap mean.

import { element } from "../element.js";
import { css, sizesOf } from "./picture.js";
import { short } from "../numbers.js";
import { themeInForce } from "../theme.js";
import { palette, stopsOf } from "./palette.js";

/**
 * Return the parts of the legend.
 *
 * @param {"change"|"size"} view
 * @param {[number, number]} range codes at the ends, for sizes
 * @param {boolean} hasAlerts
 */
export function legendOf(view, range, hasAlerts) {
  const theme = themeInForce();
  const colours = palette(view, theme);
  const [low, high] = sizesOf(range);
  const ends = view === "change" ? ["÷100", "×100"] : [`≤ ${short(low)}`, `≥ ${short(high)}`];
  const item = (...parts) => element("span.item", parts);
  return [
    item(ends[0], bar(stopsOf(view, theme)), ends[1]),
    view === "change" ? item("against each layer's own usual") : null,
    item(swatch(css(colours.ink), css(colours.ring)), "NaN or Inf"),
    item(swatch(css(colours.zero)), "zero"),
    item("▼ ◂ step and layer with NaN or Inf"),
    hasAlerts ? item(element("span.mark-alert", "│ ◂"), "an alert: first step, layers") : null,
  ];
}

function bar(stops) {
  const made = element("i.bar");
  made.style.background = `linear-gradient(to right in oklab, ${stops.join(", ")})`;
  return made;
}

function swatch(colour, ring = colour) {
  const made = element("i");
  made.style.background = colour;
  made.style.borderColor = ring;
  return made;
}
