// A small curve on a logarithmic scale: gaps stay gaps, what is not finite is a mark at the top.

import { colourOf } from "../theme.js";
import { element } from "../element.js";
import { numberOf, short } from "../numbers.js";
import { triangle } from "./marks.js";

const WIDTH = 140;
const HEIGHT = 26;

/**
 * Return a canvas with a curve, and a sentence for those who cannot see it.
 *
 * @param {(number|string|null)[]} values as the API gives them
 * @param {string} of what they are
 */
export function sparkline(values, of) {
  const canvas = element("canvas.spark", { role: "img" });
  drawSparkline(canvas, values, of);
  return canvas;
}

/** Draw on a canvas that is there. */
export function drawSparkline(canvas, values, of) {
  const numbers = values.map(numberOf);
  const ratio = window.devicePixelRatio || 1;
  canvas.width = WIDTH * ratio;
  canvas.height = HEIGHT * ratio;
  canvas.setAttribute("aria-label", sentence(numbers, of));
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const positive = numbers.filter((value) => value !== null && Number.isFinite(value) && value > 0);
  const low = Math.log(Math.min(...positive));
  const high = Math.log(Math.max(...positive));
  // Where little moves it is drawn flat: a tenth up and down is no drama.
  const middle = (low + high) / 2;
  const half = Math.max((high - low) / 2, 0.35);
  const x = (at) => 2 + (at * (WIDTH - 4)) / Math.max(1, numbers.length - 1);
  const y = (value) =>
    HEIGHT - 3 - ((Math.log(value) - middle + half) / (2 * half)) * (HEIGHT - 11);
  context.strokeStyle = context.fillStyle = colourOf("--line-1");
  context.lineWidth = 1.4;
  context.lineJoin = "round";
  context.beginPath();
  let pen = false;
  numbers.forEach((value, at) => {
    const drawn = value !== null && Number.isFinite(value) && value > 0;
    if (drawn && pen) context.lineTo(x(at), y(value));
    else if (drawn) context.moveTo(x(at), y(value));
    if (drawn && !pen) context.fillRect(x(at) - 0.7, y(value) - 0.7, 1.4, 1.4);
    pen = drawn;
  });
  context.stroke();
  numbers.forEach((value, at) => {
    if (value === 0) context.fillRect(x(at) - 1, HEIGHT - 3, 2, 2);
    if (value !== null && !Number.isFinite(value)) triangle(context, x(at), 1, 3.5);
  });
}

function sentence(numbers, of) {
  const finite = numbers.filter((value) => value !== null && Number.isFinite(value));
  const bad = numbers.filter((value) => value !== null && !Number.isFinite(value)).length;
  if (!finite.length && !bad) return `${of}: no record`;
  const range = finite.length
    ? `${short(Math.min(...finite))} to ${short(Math.max(...finite))}`
    : "none finite";
  return `${of}: ${range}${bad ? `, ${bad} not finite` : ""}`;
}
