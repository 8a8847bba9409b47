// The ranks of a run as a strip: who is there, who lags, whose records are lost.

import { element, printable } from "../element.js";
import { count, whole } from "../numbers.js";
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
    element(
      "span.soft",
      [rank.state, rank.place, ...odd, odd.length && printable(rank.host)]
        .filter(Boolean)
        .join(" · "),
    ),
  );
}

function oddities(rank, newest) {
  const found = [];
  const lag = newest - (rank.last_step ?? newest);
  if (lag > 1) found.push(`step ${whole(rank.last_step)}, ${count(lag, "step")} behind`);
  if (rank.lost) found.push(`${whole(rank.lost)} lost`);
  if (rank.unresolved) found.push(`${whole(rank.unresolved)} without manifest`);
  if (rank.stack) found.push(`in ${printable(rank.stack.split("\n")[0])}`);
  if (rank.state === "silent") found.push(`heard ${span(rank.last_seen_s)} ago`);
  return found;
}
