// What is drawn over the lines of a chart: where alerts began, what was not finite or zero, and the
// names at the ends of lines.

import { colourOf } from "../theme.js";
import { shorten } from "../element.js";
import { lastIndex, nullable } from "./scale.js";

const FONT = 11; // pixels
const LETTER = 6.5; // pixels, of that font
const MOST_LETTERS = 16;

/** Return how much room the names at the ends of lines need, in pixels; none for a single one. */
export function roomForNames(curves) {
  if (curves.length < 2) return 18;
  return 12 + LETTER * Math.max(...curves.map(({ label }) => shorten(label, MOST_LETTERS).length));
}

/**
 * Draw all of it.
 *
 * @param {any} u uPlot
 * @param {import("./chart.js").ChartData} data
 * @param {boolean} isLog whether zeros have no place on the scale
 */
export function drawMarks(u, data, isLog) {
  const { ctx, bbox } = u;
  const ratio = window.devicePixelRatio || 1;
  const place = { ctx, bbox, ratio, left: (step) => u.valToPos(step, "x", true) };
  ctx.save();
  drawAlerts(place, data);
  for (const curve of data.curves) drawRails(place, data.x, curve, isLog);
  if (data.curves.length > 1) drawNames(u, place, data.curves);
  ctx.restore();
}

function drawAlerts({ ctx, bbox, ratio, left }, { alerts = [], range }) {
  ctx.strokeStyle = colourOf("--ring");
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  for (const { step } of alerts) {
    if (step === null || step < range[0] || step > range[1]) continue;
    const x = Math.round(left(step)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.setLineDash([]);
}

// Above the plot what was not finite, below it what was zero: a curve cannot go there.
function drawRails({ ctx, bbox, ratio, left }, steps, { bad, zero }, isLog) {
  if (!bad && !zero) return;
  for (let at = 0; at < steps.length; at += 1) {
    if (!bad?.[at] && !zero?.[at]) continue;
    const x = left(steps[at]);
    if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
    if (bad?.[at]) triangle(ctx, x, bbox.top - 10 * ratio, 5 * ratio);
    if (zero?.[at] && isLog) {
      ctx.fillStyle = colourOf("--soft");
      const size = 3 * ratio;
      ctx.fillRect(x - size / 2, bbox.top + bbox.height - size, size, size);
    }
  }
}

// Lines are told apart by their names, not by colour alone. Names that would cover one another are
// put below one another.
function drawNames(u, { ctx, bbox, ratio }, curves) {
  const ends = curves
    .map((curve) => ({ curve, value: nullable(curve.last[lastIndex(curve)]) }))
    .filter(({ value }) => value !== null && Number.isFinite(value))
    .map(({ curve, value }) => ({ curve, top: u.valToPos(value, "y", true) }))
    .filter(({ top }) => Number.isFinite(top))
    .sort((one, other) => one.top - other.top);
  ctx.font = `${FONT * ratio}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  let free = bbox.top;
  for (const { curve, top } of ends) {
    const y = Math.max(free, top);
    free = y + (FONT + 1) * ratio;
    ctx.fillStyle = colourOf(`--line-${curve.style}`);
    ctx.fillText(shorten(curve.label, MOST_LETTERS), bbox.left + bbox.width + 4 * ratio, y);
  }
}

/** Draw the mark of what is not finite. */
export function triangle(ctx, x, y, half) {
  ctx.fillStyle = colourOf("--ink");
  ctx.strokeStyle = colourOf("--ring");
  ctx.beginPath();
  ctx.moveTo(x - half, y);
  ctx.lineTo(x + half, y);
  ctx.lineTo(x, y + 1.5 * half);
  ctx.closePath();
  ctx.fill();
  ctx.stroke();
}
