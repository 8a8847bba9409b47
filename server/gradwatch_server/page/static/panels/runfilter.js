// Which runs are listed, and in which order: by what the address says.

import { now } from "../time.js";
import { badness, OVER, PHASES, STATUSES } from "../words.js";
import { hasWords } from "./filter.js";

const heardAt = (run) => Date.parse(run.updated_at);
const byName = (one, other) => one.run.localeCompare(other.run);
// Runs that are heard all the time would change places all the time: in minutes they are equal.
const byMinute = (one, other) => minutesAgo(one) - minutesAgo(other) || byName(one, other);

const isBad = (run) => badness(run.status) > badness("healthy");

// Bad ones that run, bad ones that ended, then those of which nobody has to know.
const ORDERS = {
  "worst first": (one, other) =>
    isBad(other) - isBad(one) ||
    OVER.has(one.phase) - OVER.has(other.phase) ||
    badness(other.status) - badness(one.status) ||
    byMinute(one, other),
  "last heard": byMinute,
  name: byName,
  step: (one, other) => (other.step ?? -1) - (one.step ?? -1) || byName(one, other),
};

function minutesAgo(run) {
  return Math.floor((now() - heardAt(run)) / 60000);
}

/** The choices of the filter. */
export const CHOICES = {
  status: ["Status", ["any status", ...STATUSES]],
  phase: ["Phase", ["any phase", ...PHASES]],
  sort: ["Order", Object.keys(ORDERS)],
};

/** Return those runs that an address asks for, in its order. */
export function chooseRuns(runs, { q, status, phase, sort }) {
  return runs
    .filter(
      (run) =>
        hasWords(run.run, q) &&
        (!status || run.status === status) &&
        (!phase || run.phase === phase),
    )
    .sort(ORDERS[sort] ?? ORDERS["worst first"]);
}
