// The words for status, phase, severity and state, and the mark that stands before each.

/** Statuses, the worst first. */
export const STATUSES = ["critical", "stalled", "incomplete", "degraded", "healthy", "unknown"];

export const PHASES = ["running", "waiting", "ended", "failed", "lost"];

/** Severities of alerts, the worst first. */
export const SEVERITIES = ["critical", "warning", "info"];

const MARKS = {
  critical: "✖",
  stalled: "▮▮",
  incomplete: "◌",
  degraded: "◐",
  warning: "◐",
  info: "○",
  healthy: "●",
  unknown: "○",
};

/** Return the mark of a status or severity: shape carries the word, colour repeats it. */
export function markOf(word) {
  return MARKS[word] ?? "○";
}

/** What each status means, where no reason says it. */
export const STATUS_SENTENCES = {
  critical: "A critical alert is firing.",
  stalled: "No step for longer than is usual.",
  incomplete: "Ranks or records are missing: it may be worse than it looks.",
  degraded: "A warning is firing.",
  healthy: "All layers healthy.",
  unknown: "No layer judged yet.",
};

export const PHASE_SENTENCES = {
  waiting: "Attached; no step yet.",
  running: "",
  ended: "All ranks exited cleanly.",
  failed: "A rank ended with an exception.",
  lost: "Ranks lost: no clean exit.",
};

/** Phases in which nothing more comes. */
export const OVER = new Set(["ended", "failed", "lost"]);

const RANK_MARKS = { alive: "●", silent: "◌", ended: "○", failed: "✖", lost: "✖" };

/** Return the mark of a rank's state. */
export function rankMark(state) {
  return RANK_MARKS[state] ?? "○";
}

/** Return how bad a status is, larger is worse. */
export function badness(status) {
  return STATUSES.length - Math.max(0, STATUSES.indexOf(status));
}

/** What the columns of a layer are called, and what they are of. */
export const COLUMNS = new Map([
  ["l2", "L2 norm"],
  ["linf", "largest magnitude"],
  ["mean_abs", "mean magnitude"],
  ["rms", "root mean square"],
  ["l1", "L1 norm"],
  ["zeros", "zeros"],
  ["nans", "NaN elements"],
  ["infs", "Inf elements"],
  ["update_rms", "update size (rms)"],
  ["weight_rms", "weight size (rms)"],
  ["unchanged", "share of unchanged weights"],
]);

/** What the series of a run are called. */
export const RUN_SERIES = new Map([
  ["norm", "gradient norm"],
  ["loss", "loss"],
  ["lr", "learning rate"],
  ["step_time", "step time, s"],
]);
