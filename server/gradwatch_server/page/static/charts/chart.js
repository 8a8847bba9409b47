// Curves over steps: bands from least to largest, gaps, and marks for what no curve can show.

import { element, fill, setText, table } from "../element.js";
import { short, whole } from "../numbers.js";
import { followSteps, tellStep } from "./linked.js";
import { drawMarks } from "./marks.js";
import { optionsOf } from "./options.js";
import { columnsOf, hasAny, lastIndex, nullable, rangeOf, valueText } from "./scale.js";

const HEIGHT = 150;
const MOST_ROWS = 50; // of the table
const MISSING =
  "Lines are missing: this aggregator was installed without uPlot, which draws them. The numbers are in the table.";

let loading = null; // uPlot is loaded once: it is not part of this package, and may not be there

/**
 * @typedef {Object} Curve
 * @property {string} label
 * @property {ArrayLike<number>} last  NaN or null where there is none; so are `min` and `max`
 * @property {ArrayLike<number>} min
 * @property {ArrayLike<number>} max
 * @property {ArrayLike<number>} [bad]  steps of each bucket that were not finite
 * @property {ArrayLike<number>} [zero]
 * @property {number} style  1 to 4
 * @property {number[]} [dash]  of its line
 *
 * @typedef {Object} ChartData
 * @property {ArrayLike<number>} x  first step of each bucket
 * @property {number} width  steps in a bucket
 * @property {Curve[]} curves
 * @property {[number, number]} range  of steps
 * @property {number|null} [step]  what is read out without a cursor; else the newest
 * @property {{step: number, rule: string}[]} [alerts]
 */

/** One chart, with a title that reads out what lies under the cursor. */
export class Chart {
  /**
   * @param {{title: string, log?: boolean, onRange?: (from: number, to: number) => void,
   *   height?: number, nothing?: string, format?: (value: number) => string}} settings
   */
  constructor(settings) {
    this.settings = {
      log: true,
      height: HEIGHT,
      nothing: "no record in this range",
      format: short,
      ...settings,
    };
    this.value = element("span.value");
    this.plot = element("div.plot", { "aria-hidden": "true" });
    this.table = element("div", { hidden: true });
    this.element = element(
      "figure.chart",
      element("figcaption.title", element("b", settings.title), this.value),
      this.plot,
      this.table,
    );
    this.data = null;
    this.drawn = null;
    this.shape = null;
    this.isClosed = false;
    this.at = null; // the step under the cursor
    this.pointTo = (step) => this.point(step);
    this.unfollow = followSteps(this.pointTo);
  }

  /** Show data; @param {ChartData} data */
  async show(data) {
    if (this.isClosed) return;
    this.data = data;
    const held = this.drawn?.cursor;
    this.describe(held?.left >= 0 && held.idx < data.x.length ? held.idx : null);
    if (this.table.hidden === false) this.drawTable();
    const Lines = await (loading ??= loadLines());
    if (this.data !== data || this.isClosed) return;
    if (!data.curves.some(hasAny)) return this.empty(this.settings.nothing);
    if (!Lines) {
      this.empty(MISSING);
      this.toggleTable(true);
      return;
    }
    const shape = JSON.stringify([
      data.curves.map(({ label, style, dash }) => [label, style, dash]),
      data.width > 1,
      this.plot.clientWidth,
    ]);
    const columns = columnsOf(data, this.settings.log);
    if (this.drawn && this.shape === shape) {
      this.drawn.setData(columns, false);
      this.drawn.setScale("x", rangeOf(data));
    } else this.make(Lines, shape, columns);
  }

  empty(text) {
    this.destroy();
    fill(this.plot, element("p.nothing", text));
  }

  make(Lines, shape, columns) {
    this.destroy();
    fill(this.plot);
    this.shape = shape;
    const hooks = {
      setCursor: [(u) => this.moved(u.cursor.left < 0 ? null : u.cursor.idx)],
      setSelect: [(u) => this.select(u)],
      draw: [(u) => drawMarks(u, this.data, this.settings.log)],
    };
    const place = { width: Math.max(120, this.plot.clientWidth), hooks };
    this.drawn = new Lines(optionsOf(this.data, this.settings, place), columns, this.plot);
  }

  destroy() {
    this.drawn?.destroy();
    this.drawn = null;
    this.shape = null;
  }

  /** Show nothing, until there are other data. */
  clear() {
    this.destroy();
    this.data = null;
    setText(this.value, "");
    fill(this.plot);
    fill(this.table);
  }

  /** End it: what draws lines keeps each plot that is not destroyed. */
  close() {
    this.isClosed = true;
    this.unfollow();
    this.destroy();
  }

  /** Draw again, in the colours of now. */
  redraw() {
    this.destroy();
    if (this.data) this.show(this.data);
  }

  select(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    const [from, to] = [left, left + width].map((at) => u.posToVal(at, "x"));
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.settings.onRange?.(Math.max(0, Math.floor(from)), Math.ceil(to));
  }

  moved(index) {
    this.describe(index);
    const step = index === null ? null : this.data.x[index];
    if (step === this.at) return;
    this.at = step;
    tellStep(step, this.pointTo);
  }

  // Another chart, or the picture, has its cursor at a step.
  point(step) {
    const u = this.drawn;
    if (!u) return;
    this.at = step;
    const left = step === null ? -10 : u.valToPos(step, "x");
    const isIn = left >= 0 && left <= u.over.clientWidth;
    u.setCursor({ left: isIn ? left : -10, top: isIn ? 0 : -10 });
  }

  /** Read out the value under the cursor; without one that of the step in question, or the newest. */
  describe(pointed) {
    const { curves, x, width, step = null } = this.data;
    const index = pointed ?? indexOf(x, width, step);
    if (!curves.length || !x.length) return setText(this.value, "");
    const parts = curves.map((curve) => {
      const at = index ?? lastIndex(curve);
      const text = at < 0 ? "" : valueText(curve, at, width, this.settings.format);
      return curves.length > 1 ? `${curve.label} ${text}` : text;
    });
    const at =
      index === null
        ? ""
        : ` at ${whole(x[index])}${width > 1 ? `–${whole(x[index] + width - 1)}` : ""}`;
    setText(this.value, parts.join(" · ") + at);
  }

  /** Show the numbers as a table besides, or no longer. */
  toggleTable(wanted = this.table.hidden) {
    this.table.hidden = !wanted;
    if (wanted) this.drawTable();
  }

  drawTable() {
    if (this.data) fill(this.table, chartTable(this.data, this.settings));
  }
}

// Return the index of the bucket that has a step, null if there is none.
function indexOf(x, width, step) {
  if (step === null) return null;
  const index = x.findIndex((first) => first <= step && step < first + width);
  return index < 0 ? null : index;
}

/** Return the newest buckets of a chart as a table. */
function chartTable({ curves, x, width }, { title, format }) {
  const cellsOf = (curve, at) => {
    const last = valueText(curve, at, width, format);
    const ends = [curve.min, curve.max].map((values) => format(nullable(values[at])));
    return width > 1 ? [last, ...ends] : [last];
  };
  const heads = curves.flatMap(({ label }) =>
    width > 1 ? [`${label}, last`, "least", "largest"] : [label],
  );
  const rows = Array.from(x, (step, at) => [step, at])
    .slice(-MOST_ROWS)
    .reverse();
  return table(
    `${title}, newest first`,
    [width > 1 ? `steps, ${width} each` : "step", ...heads],
    rows.map(([step, at]) => [whole(step), ...curves.flatMap((curve) => cellsOf(curve, at))]),
  );
}

// Return uPlot; null where it was not installed with the aggregator.
async function loadLines() {
  const path = document.querySelector("meta[name=gradwatch-lines]").content;
  if (!path) return null;
  try {
    return (await import(path)).default;
  } catch (error) {
    console.error("uPlot", error);
    return null;
  }
}
