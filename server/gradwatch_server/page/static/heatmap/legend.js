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
  const canvas = element("canvas", { width: "120", height: "12", "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const gradient = context.createLinearGradient(0, 0, 120, 0);
  stops.forEach((stop, at) => gradient.addColorStop(at / (stops.length - 1), stop));
  context.fillStyle = gradient;
  context.fillRect(0, 0, 120, 12);
  return canvas;
}

function swatch(colour, ring) {
  const canvas = element("canvas", { width: "12", height: "12", "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  if (ring) {
    context.fillStyle = ring;
    context.fillRect(0, 0, 12, 12);
  }
  context.fillStyle = colour;
  context.fillRect(ring ? 2 : 0, ring ? 2 : 0, ring ? 8 : 12, ring ? 8 : 12);
  return canvas;
}
