// The codes of a heatmap's cells: 16 bits each, special below 16, above the logarithm of the value.

export const NO_RECORD = 0;
export const NOT_IN_STEP = 1;
export const ZERO = 2;
export const NAN = 3;
export const INF = 4;
export const NAN_AND_INF = 5;
export const TINY = 6;
export const HUGE = 7;
export const SKIPPED = 8;
export const FIRST = 16; // 2^-149

const OCTAVES = 278; // from 2^-149 to 2^129
const CODES_PER_OCTAVE = (65535 - FIRST) / OCTAVES;

/** How far from usual the map's ends are: a hundred times. */
export const CLIP = Math.log2(100) * CODES_PER_OCTAVE;
/** Within this much of usual nothing is coloured: twice, or where a norm often leaves it farther. */
export const QUIET = CODES_PER_OCTAVE;

const SPREADS = 3; // of a norm that is quiet

/** Return how far from usual a norm is quiet that usually leaves it by a factor. */
export function quietOf(spread) {
  const own = SPREADS * Math.log2(spread) * CODES_PER_OCTAVE;
  return own > QUIET ? Math.min(own, CLIP / 2) : QUIET;
}

const WORDS = new Map([
  [NO_RECORD, "no record"],
  [NOT_IN_STEP, "not in this step"],
  [ZERO, "0"],
  [NAN, "NaN"],
  [INF, "Inf"],
  [NAN_AND_INF, "NaN and Inf"],
  [TINY, "below 1.4e-45"],
  [HUGE, "above 6.8e38"],
  [SKIPPED, "not finite, step skipped by the scaler"],
]);

/** Return the value of a code; null where it has a word instead. */
export function valueOf(code) {
  return code < FIRST ? (code === ZERO ? 0 : null) : 2 ** ((code - FIRST) / CODES_PER_OCTAVE - 149);
}

/** Return the word of a code that has no value of its own, else null. */
export function wordOf(code) {
  return WORDS.get(code) ?? null;
}

/** Return how many times the usual norm a cell is; null where either has no value. */
export function ratioOf(code, usual) {
  if (code < FIRST || usual < FIRST) return null;
  return 2 ** ((code - usual) / CODES_PER_OCTAVE);
}

/** Tell whether a code says that something was not finite, and the step was taken. */
export function isBad(code) {
  return code >= NAN && code <= NAN_AND_INF;
}

/**
 * Return how urgent a cell is, 0 to 255: where cells share a pixel the most urgent one is drawn.
 * Not finite, then out of range, then far from usual, then zero where that is not usual.
 */
export function urgencyOf(code, usual, quiet = QUIET) {
  if (code >= FIRST) {
    if (usual < FIRST) return 3;
    const off = Math.abs(code - usual);
    return off <= quiet ? 3 : Math.min(240, 6 + Math.round((234 * (off - quiet)) / (CLIP - quiet)));
  }
  if (isBad(code)) return 255;
  if (code === SKIPPED) return 252;
  if (code === HUGE || code === TINY) return 250;
  if (code === ZERO) return usual === ZERO ? 2 : 4;
  return code === NO_RECORD ? 1 : 0;
}
