// Notes when something was there for the first time, in the browser's own timeline of the page.

/** Note it, unless it was before. `scripts/bench page` reads these. */
export function reached(name) {
  if (!performance.getEntriesByName(name, "mark").length) performance.mark(name);
}
