// What is shown, as the address says it: plain words, so that it can be read, shared and typed.

const NUMBERS = ["from", "to", "last", "step"];
const PAGES = ["silences", "rules"];
const TEXTS = ["page", "alert", "layer", "column", "view", "fold", "q", "status", "phase", "sort"];

/**
 * Parse the query of an address.
 *
 * @param {string} search
 * @returns {{runs: string[], attempts: number[]}} and a property for each further parameter given
 */
export function parseAddress(search) {
  const query = new URLSearchParams(search);
  const state = {
    runs: query.getAll("run").slice(0, 4),
    attempts: query
      .getAll("attempt")
      .map(wholeNumber)
      .filter((number) => number !== null)
      .slice(0, 4),
  };
  if (query.has("open")) state.open = query.getAll("open");
  for (const name of NUMBERS) {
    const value = wholeNumber(query.get(name));
    if (value !== null) state[name] = value;
  }
  for (const name of TEXTS) if (query.get(name)) state[name] = query.get(name);
  return state;
}

/** Return the parts of a query that are no part of an address, as they are written there. */
export function unknownParts(search) {
  const isKnown = ([name, value]) =>
    (NUMBERS.includes(name) || name === "attempt" ? wholeNumber(value) !== null : true) &&
    ["run", "attempt", "open", ...NUMBERS, ...TEXTS].includes(name);
  return [...new URLSearchParams(search)]
    .filter((part) => !isKnown(part))
    .map(([name, value]) => `${name}=${value}`);
}

function wholeNumber(text) {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** Return the address of a state; `parseAddress` of it gives the state again. */
export function formatAddress(state) {
  const query = new URLSearchParams();
  for (const run of state.runs ?? []) query.append("run", run);
  for (const attempt of state.attempts ?? []) query.append("attempt", String(attempt));
  for (const module of state.open ?? []) query.append("open", module);
  for (const name of [...NUMBERS, ...TEXTS]) {
    const value = state[name];
    if (value !== undefined && value !== null && value !== "") query.append(name, String(value));
  }
  const text = query.toString();
  return text ? `/?${text}` : "/";
}

/** Return the address of a run's page, with further parameters. */
export function runAddress(run, more = {}) {
  return formatAddress({ runs: [run], ...more });
}

/** Return the name of the view that shows a state. */
export function viewOf(state) {
  if (state.page) return PAGES.includes(state.page) ? state.page : "unknown";
  if (state.alert) return "alert";
  if (state.runs.length > 1 || state.attempts.length > 1) return "compare";
  return state.runs.length === 1 ? "run" : "runs";
}
