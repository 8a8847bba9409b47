// The ranks of a run as a strip: who is there, who lags, whose records are lost.

import { element, printable } from "../element.js";
import { count, numberOf, seconds, short, whole } from "../numbers.js";
import { span } from "../time.js";
import { rankMark } from "../words.js";

const MOST = 64;

/**
 * Return the strip; the ones that are off come first.
 *
 * @param {any[]} ranks as `/ranks` gives them
 * @param {{rank: number|null, step: number}|null} bad where the first NaN or Inf was
 */
export function rankStrip(ranks, bad) {
  const newest = Math.max(...ranks.map((rank) => rank.last_step ?? -1));
  const described = ranks.map((rank) => {
    const first = bad?.rank === rank.rank ? [`first NaN or Inf, step ${whole(bad.step)}`] : [];
    return [rank, [...first, ...oddities(rank, newest)]];
  });
  described.sort((one, other) => other[1].length - one[1].length);
  const isLong = described.length > MOST;
  const items = described.slice(0, MOST).map(([rank, odd]) => itemOf(rank, odd));
  if (isLong) items.push(element("li", `and ${count(described.length - MOST, "rank")} more`));
  return element("ul.ranks", { "aria-label": "Ranks" }, items);
}

function itemOf(rank, odd) {
  const title = [
    rank.host,
    rank.pid ? `pid ${rank.pid}` : "",
    `${whole(rank.stored)} records stored`,
    rank.reason,
    rank.stack ? `\n${printable(rank.stack.replaceAll("\n", " ← "))}` : "",
  ]
    .filter(Boolean)
    .join(", ");
  const isOff = !["alive", "ended"].includes(rank.state);
  return element(
    "li",
    { class: isOff ? "off" : "", title },
    element(
      "b",
      element(
        "span",
        { "aria-hidden": "true", class: isOff ? "is-critical" : "" },
        `${rankMark(rank.state)} `,
      ),
      `rank ${rank.rank}`,
    ),
    element("span.soft", [rank.state, rank.place, ...odd].filter(Boolean).join(" · ")),
  );
}

function oddities(rank, newest) {
  const found = [];
  const lag = rank.lag_steps ?? newest - (rank.last_step ?? newest);
  if (lag > 1) found.push(`${count(lag, "step")} behind`);
  if (rank.lost) found.push(`${whole(rank.lost)} lost`);
  if (rank.unresolved) found.push(`${whole(rank.unresolved)} without manifest`);
  if (numberOf(rank.step_time_s) !== null && rank.step_time_s !== undefined)
    found.push(`${seconds(rank.step_time_s)}/step`);
  if (numberOf(rank.divergence) > 0) found.push(`differs by ${short(rank.divergence)}`);
  if (rank.stack) found.push(`in ${printable(rank.stack.split("\n")[0])}`);
  if (rank.state === "silent") found.push(`heard ${span(rank.last_seen_s)} ago`);
  return found;
}
