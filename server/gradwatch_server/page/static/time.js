// Ages and times of day, by the aggregator's clock: a wrong one in the browser makes nothing stale.

import { keep, recall } from "./choices.js";
import { element, setText } from "./element.js";

let ahead_ms = 0; // of this browser's clock: the aggregator's time less ours
let inUtc = recall("utc") === "1";

/** Take over what time the aggregator says it is. */
export function setClock(isotime) {
  const then = Date.parse(isotime);
  if (!Number.isNaN(then)) ahead_ms = then - Date.now();
}

/** Return the time by the aggregator's clock, milliseconds since the epoch. */
export function now() {
  return Date.now() + ahead_ms;
}

/** Turn UTC on or off; return whether it is on. */
export function toggleUtc() {
  inUtc = !inUtc;
  keep("utc", inUtc ? "1" : "0");
  return inUtc;
}

/** Return a length of time in words, one unit: `31 s`, `4 min`, `2 d`. */
export function span(seconds) {
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** Return how long ago something was, given as ISO 8601. */
export function ago(isotime) {
  const then = Date.parse(isotime);
  return Number.isNaN(then) ? "" : `${span((now() - then) / 1000)} ago`;
}

/** Return how long ago something was, as an element that `ageAll` keeps true. */
export function agoOf(isotime) {
  return element("time", { datetime: isotime }, ago(isotime));
}

/** Bring all ages in a part of the page up to date. */
export function ageAll(part) {
  for (const each of part.querySelectorAll("time")) setText(each, ago(each.dateTime));
}

/** Return a time of day with its offset, 24 hours; with the date if it is another day's. */
export function clock(time) {
  const given = typeof time === "number" ? time : Date.parse(time);
  if (Number.isNaN(given)) return "";
  const offset_min = inUtc ? 0 : -new Date(given).getTimezoneOffset();
  const day = (at) => new Date(at + offset_min * 60000).toISOString().slice(0, 10);
  const text = new Date(given + offset_min * 60000).toISOString();
  const date = day(given) === day(now()) ? "" : `${text.slice(0, 10)} `;
  return `${date}${text.slice(11, 19)} ${offset(offset_min)}`;
}

function offset(minutes) {
  if (inUtc) return "UTC";
  const size = Math.abs(minutes);
  const pad = (part) => String(part).padStart(2, "0");
  return `${minutes < 0 ? "−" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
}
