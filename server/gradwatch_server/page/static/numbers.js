// Numbers as people compare them: three digits, 1e-7 as the rules write it, words for the rest.

const GROUPS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/**
 * Return a number of the API as a JavaScript number: `"NaN"`, `"Infinity"` and `"-Infinity"` are
 * strings in JSON.
 *
 * @param {number|string|null|undefined} value
 * @returns {number|null} null where there is none
 */
export function numberOf(value) {
  if (value === null || value === undefined) return null;
  return typeof value === "number" ? value : Number(value);
}

/** Return three significant digits: 0.001 to 9,999 plain, else as `1.23e-7`. */
export function short(value) {
  const number = numberOf(value);
  if (number === null) return "no record";
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "Inf" : "-Inf";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 0.001 && size < 9999.5) {
    if (size >= 999.5) return GROUPS.format(number);
    const digits = number.toPrecision(3);
    return digits.includes("e") ? String(Number(digits)) : digits;
  }
  const [mantissa, exponent] = number.toExponential(2).split("e");
  return `${mantissa.replace(/\.?0+$/, "")}e${Number(exponent)}`;
}

/** Return every digit that the number has. */
export function exact(value) {
  const number = numberOf(value);
  if (number === null) return "no record";
  return Number.isFinite(number) ? String(number) : short(number);
}

/** Return a count or a step with commas. */
export function whole(value) {
  const number = numberOf(value);
  if (number === null) return "no record";
  return Number.isFinite(number) ? GROUPS.format(number) : short(number);
}

/** Return how many of something, in words. */
export function count(number, one, many = `${one}s`) {
  return `${whole(number)} ${number === 1 ? one : many}`;
}

/** Return how many times as large, with two digits: `4.2 ×`. */
export function times(ratio) {
  const number = numberOf(ratio);
  if (number === null || !Number.isFinite(number)) return short(number);
  return `${number >= 100 || number < 0.01 ? short(number) : String(Number(number.toPrecision(2)))} ×`;
}

/** Return seconds with a unit that fits. */
export function seconds(value) {
  const number = numberOf(value);
  if (number === null) return "no record";
  if (number < 1e-3) return `${short(number * 1e6)} µs`;
  if (number < 1) return `${short(number * 1e3)} ms`;
  return `${short(number)} s`;
}

/** Return a score as it is compared: two digits, and never 1.00 for what is not whole. */
export function scoreText(score) {
  const number = numberOf(score);
  return number < 1 && number >= 0.995 ? "0.99" : number.toFixed(2);
}
