// Colours of the heatmap, interpolated in OKLab, and those of the theme in force.

import { colourOf } from "../theme.js";

export const STEPS = 256; // colours of a map

const STOPS = {
  change: {
    light: ["#2a6fbf", "#6fa8dc", "#b9d4ec", "#f4f2ee", "#f0c891", "#dd9440", "#b5620f"],
    dark: ["#8cc4f5", "#4f8fce", "#2c4d70", "#1f2226", "#5f4222", "#b0742c", "#e8ad62"],
  },
  size: {
    light: ["#e9f1ec", "#bcd9cf", "#8fbcc0", "#6c97b3", "#586f9f", "#4a4a82"],
    dark: ["#1f2430", "#2b3a55", "#335a72", "#417d80", "#6aa385", "#b3d6ab"],
  },
};

const known = new Map();

/**
 * Return the colours of a map as packed pixels (as ImageData holds them, little-endian).
 *
 * @param {"change"|"size"} view
 * @param {"light"|"dark"} theme
 * @returns {{map: Uint32Array, ink: number, paper: number, ring: number, zero: number}}
 */
export function palette(view, theme) {
  const key = `${view} ${theme}`;
  if (!known.has(key)) {
    const made = { map: interpolate(STOPS[view][theme]) };
    for (const name of ["ink", "paper", "ring", "zero"])
      made[name] = pack(colourOf(`--${name}`).match(/\d+/g).map(Number));
    known.set(key, made);
  }
  return known.get(key);
}

/** Return a map's stops, as colours of CSS: for its legend. */
export function stopsOf(view, theme) {
  return STOPS[view][theme];
}

function interpolate(stops) {
  const points = stops.map((stop) => toOklab(channels(stop)));
  const made = new Uint32Array(STEPS);
  for (let step = 0; step < STEPS; step += 1) {
    const place = (step / (STEPS - 1)) * (points.length - 1);
    const low = Math.min(Math.floor(place), points.length - 2);
    const part = place - low;
    const mixed = points[low].map((value, axis) => value + part * (points[low + 1][axis] - value));
    made[step] = pack(fromOklab(mixed));
  }
  return made;
}

function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function pack([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function toOklab(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function fromOklab([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((part) => {
    const value = part <= 0.0031308 ? 12.92 * part : 1.055 * part ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, value)));
  });
}
