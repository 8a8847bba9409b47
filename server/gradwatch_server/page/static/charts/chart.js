// Curves over steps: bands from least to largest, gaps, and marks for what no curve can show.

import { element, fill, setText } from "../element.js";
import { loadLines, MISSING } from "./lines.js";
import { short, whole } from "../numbers.js";

const HEIGHT = 150;
const MOST_ROWS = 50;
const SYNC = "steps";

/**
 * @typedef {Object} Curve
 * @property {string} label
 * @property {ArrayLike<number>} last  NaN or null where there is none; so are `min` and `max`
 * @property {ArrayLike<number>} min
 * @property {ArrayLike<number>} max
 * @property {ArrayLike<number>} [bad]  steps of each bucket that were not finite
 * @property {ArrayLike<number>} [zero]
 * @property {number} [style]  1 to 4
 *
 * @typedef {Object} ChartData
 * @property {ArrayLike<number>} x  first step of each bucket
 * @property {number} width  steps in a bucket
 * @property {Curve[]} curves
 * @property {[number, number]} range  of steps
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
    this.value = element("span", { class: "value" });
    this.plot = element("div", { class: "plot", "aria-hidden": "true" });
    this.table = element("div", { class: "scroll", hidden: true });
    this.element = element(
      "figure",
      { class: "chart" },
      element("figcaption", { class: "title" }, element("b", {}, settings.title), this.value),
      this.plot,
      this.table,
    );
    this.data = null;
    this.drawn = null;
    this.shape = null;
    this.isClosed = false;
  }

  /** Show data; @param {ChartData} data */
  async show(data) {
    if (this.isClosed) return;
    this.data = data;
    this.describe(null);
    if (this.table.hidden === false) this.drawTable();
    const Lines = await loadLines();
    if (this.data !== data || this.isClosed) return;
    if (!data.curves.some(hasAny)) return this.empty(this.settings.nothing);
    if (!Lines) {
      this.empty(MISSING);
      this.toggleTable(true);
      return;
    }
    const shape = JSON.stringify([
      data.curves.map((curve) => [curve.label, curve.style]),
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
    fill(this.plot, element("p", { class: "nothing" }, text));
  }

  make(Lines, shape, columns) {
    this.destroy();
    fill(this.plot);
    this.shape = shape;
    this.drawn = new Lines(this.options(Lines), columns, this.plot);
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
    this.destroy();
  }

  /** Draw again, in the colours of now. */
  redraw() {
    this.destroy();
    if (this.data) this.show(this.data);
  }

  options() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const { log, format, height } = this.settings;
    const axis = {
      stroke: colour("--soft"),
      font: `11px ${colour("--sans")}`,
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
    };
    const series = [{}];
    const bands = [];
    this.data.curves.forEach((curve, at) => {
      const stroke = colour(`--line-${curve.style ?? (at % 4) + 1}`);
      const dash = curve.dash ?? (at >= 4 ? [4, 3] : undefined);
      const points = {
        show: (u, index) => lonely(u.data[index]),
        filter: (u, index) => lonelyPoints(u.data[index]),
        size: 4,
        fill: stroke,
      };
      if (this.data.width > 1) {
        bands.push({ series: [series.length, series.length + 1], fill: colour("--band") });
        series.push(
          { stroke: "transparent", points: { show: false } },
          { stroke: "transparent", points: { show: false } },
        );
      }
      series.push({ stroke, width: 1.5, dash, points });
    });
    return {
      width: Math.max(120, this.plot.clientWidth),
      height,
      legend: { show: false },
      series,
      bands,
      padding: [12, 18, 0, 0],
      scales: {
        x: { time: false, range: (u, min, max) => [min ?? 0, max ?? 1] },
        y: { distr: log ? 3 : 1, range: (u, min, max) => padded(min, max, log) },
      },
      axes: [
        {
          ...axis,
          size: 22,
          gap: 2,
          values: (u, splits) =>
            splits.map((split) => (Number.isInteger(split) ? whole(split) : "")),
        },
        {
          ...axis,
          size: 54,
          gap: 4,
          values: (u, splits) =>
            splits.map((split) => (split === null ? "" : trimmed(format(split)))),
          filter: (u, splits) => splits,
          splits: (u, index, min, max) => ticks(min, max, log),
        },
      ],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        sync: { key: SYNC, scales: ["x", null] },
      },
      hooks: {
        setCursor: [(u) => this.describe(u.cursor.left < 0 ? null : u.cursor.idx)],
        setSelect: [(u) => this.select(u)],
        draw: [(u) => this.drawMarks(u, colour)],
      },
    };
  }

  select(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    const [from, to] = [left, left + width].map((at) => u.posToVal(at, "x"));
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.settings.onRange?.(Math.max(0, Math.floor(from)), Math.ceil(to));
  }

  /** Read out the value under the cursor; the newest without one. */
  describe(index) {
    const { curves, x, width } = this.data;
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

  // Above the plot what was not finite, below it what was zero: a curve cannot go there.
  drawMarks(u, colour) {
    const { ctx, bbox } = u;
    const ratio = window.devicePixelRatio || 1;
    const { curves, x, alerts = [], range } = this.data;
    ctx.save();
    ctx.strokeStyle = colour("--ring");
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    for (const { step } of alerts) {
      if (step === null || step < range[0] || step > range[1]) continue;
      const left = Math.round(u.valToPos(step, "x", true)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    for (const curve of curves) {
      for (let at = 0; at < x.length; at += 1) {
        const left = u.valToPos(x[at], "x", true);
        if (left < bbox.left - 1 || left > bbox.left + bbox.width + 1) continue;
        if (curve.bad?.[at]) triangle(ctx, left, bbox.top - 10 * ratio, 5 * ratio, colour);
        if (curve.zero?.[at] && this.settings.log) {
          ctx.fillStyle = colour("--soft");
          ctx.fillRect(
            left - 1.5 * ratio,
            bbox.top + bbox.height - 3 * ratio,
            3 * ratio,
            3 * ratio,
          );
        }
      }
    }
    ctx.restore();
  }

  /** Show the numbers as a table besides, or no longer. */
  toggleTable(wanted = this.table.hidden) {
    this.table.hidden = !wanted;
    if (wanted) this.drawTable();
  }

  drawTable() {
    const { curves, x, width } = this.data ?? { curves: [], x: [], width: 1 };
    const heads = curves.flatMap((curve) =>
      width > 1 ? [`${curve.label}, last`, "least", "largest"] : [curve.label],
    );
    const rows = [];
    for (let at = x.length - 1; at >= 0 && rows.length < MOST_ROWS; at -= 1) {
      const cells = curves.flatMap((curve) => {
        const last = valueText(curve, at, width, this.settings.format);
        return width > 1
          ? [
              last,
              this.settings.format(nullable(curve.min[at])),
              this.settings.format(nullable(curve.max[at])),
            ]
          : [last];
      });
      rows.push(
        element(
          "tr",
          {},
          element("th", { scope: "row", class: "number" }, whole(x[at])),
          cells.map((text) => element("td", { class: "number" }, text)),
        ),
      );
    }
    fill(
      this.table,
      element(
        "table",
        {},
        element("caption", {}, `${this.settings.title}, newest first`),
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            element(
              "th",
              { scope: "col", class: "number" },
              width > 1 ? `steps, ${width} each` : "step",
            ),
            heads.map((head) => element("th", { scope: "col", class: "number" }, head)),
          ),
        ),
        element("tbody", {}, rows),
      ),
    );
  }
}

function nullable(value) {
  return value === undefined || value === null || Number.isNaN(value) ? null : value;
}

function valueText(curve, at, width, format) {
  const value = nullable(curve.last[at]);
  const bad = curve.bad?.[at] ?? 0;
  if (value === null && bad) return curve.inf?.[at] && !curve.nan?.[at] ? "Inf" : "NaN";
  const text = format(value);
  return bad && width > 1 ? `${text}, ${whole(bad)} not finite` : text;
}

function hasAny({ last, bad, zero }) {
  for (let at = 0; at < last.length; at += 1)
    if (nullable(last[at]) !== null || bad?.[at] || zero?.[at]) return true;
  return false;
}

function lastIndex({ last, bad }) {
  for (let at = last.length - 1; at >= 0; at -= 1)
    if (nullable(last[at]) !== null || bad?.[at]) return at;
  return -1;
}

// uPlot breaks a line at null, not at NaN; a logarithm takes neither zero nor what is below it.
function columnsOf({ x, width, curves }, log) {
  const clean = (values) =>
    Array.from(values, (value) =>
      nullable(value) === null || !Number.isFinite(value) || (log && value <= 0) ? null : value,
    );
  const columns = [Array.from(x)];
  for (const curve of curves) {
    if (width > 1) columns.push(clean(curve.max), clean(curve.min));
    columns.push(clean(curve.last));
  }
  return columns;
}

function rangeOf({ range }) {
  return { min: range[0], max: Math.max(range[1], range[0] + 1) };
}

function lonely(values) {
  return lonelyPoints(values) !== null;
}

// A good point between two bad ones has no line to lie on: it gets a dot.
function lonelyPoints(values) {
  const found = [];
  for (let at = 0; at < values.length; at += 1) {
    if (
      values[at] !== null &&
      (values[at - 1] ?? null) === null &&
      (values[at + 1] ?? null) === null
    )
      found.push(at);
  }
  return found.length ? found : null;
}

function padded(min, max, log) {
  if (min === null || max === null || min === undefined || max === undefined)
    return log ? [0.1, 1] : [0, 1];
  if (!log) {
    const gap = max - min || Math.abs(max) || 1;
    const low = min - 0.08 * gap;
    return [min >= 0 && low < 0 ? 0 : low, max + 0.08 * gap];
  }
  const part = Math.max(Math.log10(max / min) * 0.08, 0.06);
  return [min / 10 ** part, max * 10 ** part];
}

// The zeros at the end that a value has and the name of a line needs not.
function trimmed(text) {
  return /^-?\d+\.\d+$/.test(text) ? text.replace(/\.?0+$/, "") : text;
}

/** Return where the lines of a scale are: powers of ten if it spans some, else round numbers. */
export function ticks(min, max, log) {
  if (log && max / min > 30) {
    const first = Math.ceil(Math.log10(min));
    const count = Math.floor(Math.log10(max)) - first + 1;
    const every = Math.max(1, Math.ceil(count / 5));
    return Array.from({ length: Math.ceil(count / every) }, (_, at) => 10 ** (first + at * every));
  }
  const rough = (max - min) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(min / unit); at * unit <= max; at += 1)
    found.push(Number((at * unit).toPrecision(12)));
  return found;
}

function triangle(ctx, x, y, half, colour) {
  ctx.fillStyle = colour("--ink");
  ctx.strokeStyle = colour("--ring");
  ctx.beginPath();
  ctx.moveTo(x - half, y);
  ctx.lineTo(x + half, y);
  ctx.lineTo(x, y + 1.5 * half);
  ctx.closePath();
  ctx.fill();
  ctx.stroke();
}
