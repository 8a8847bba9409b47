// From numbers to what a scale shows: values without gaps in them, the ends of scales, their lines.

import { whole } from "../numbers.js";

/** Return a value, null where there is none. */
export function nullable(value) {
  return value === undefined || value === null || Number.isNaN(value) ? null : value;
}

/** Return what a curve had in a bucket, in words. */
export function valueText(curve, at, width, format) {
  const value = nullable(curve.last[at]);
  const bad = curve.bad?.[at] ?? 0;
  if (value === null && bad) return curve.inf?.[at] && !curve.nan?.[at] ? "Inf" : "NaN";
  const text = format(value);
  return bad && width > 1 ? `${text}, ${whole(bad)} not finite` : text;
}

/** Tell whether a curve has anything to show. */
export function hasAny({ last, bad, zero }) {
  for (let at = 0; at < last.length; at += 1)
    if (nullable(last[at]) !== null || bad?.[at] || zero?.[at]) return true;
  return false;
}

/** Return where a curve has its newest record; -1 if it has none. */
export function lastIndex({ last, bad }) {
  for (let at = last.length - 1; at >= 0; at -= 1)
    if (nullable(last[at]) !== null || bad?.[at]) return at;
  return -1;
}

/**
 * Return the columns that are drawn.
 *
 * uPlot breaks a line at null, not at NaN; a logarithm takes neither zero nor what is below it.
 */
export function columnsOf({ x, width, curves }, log) {
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

/** Return the ends of the scale of steps. */
export function rangeOf({ range }) {
  return { min: range[0], max: Math.max(range[1], range[0] + 1) };
}

/** Tell whether a curve has points without a line. */
export function lonely(values) {
  return lonelyPoints(values) !== null;
}

/** Return the points without a line: a good one between two bad ones gets a dot. */
export function lonelyPoints(values) {
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

/** Return the ends of a scale of values, with some room. */
export function padded(min, max, log) {
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

/** Return a number without the zeros at its end: the name of a line needs none. */
export function trimmed(text) {
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
