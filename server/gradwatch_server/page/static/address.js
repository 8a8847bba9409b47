// What is shown, as the address says it: plain words, so that it can be read, shared and typed.

const NUMBERS = ["attempt", "from", "to", "last", "step"];
const PAGES = ["alerts", "silences", "rules"];
const FILTERS = ["q", "status", "severity", "phase", "sort"];
const TEXTS = ["page", "alert", "layer", "column", "view", "fold", "beside", ...FILTERS];
const PARTS = ["run", ...NUMBERS, ...TEXTS];

/**
 * Parse the query of an address.
 *
 * @param {string} search
 * @returns {Object} a property for each parameter given
 */
export function parseAddress(search) {
  const query = new URLSearchParams(search);
  const state = {};
  if (query.has("open")) state.open = query.getAll("open");
  for (const name of PARTS) {
    const text = query.get(name);
    const value = NUMBERS.includes(name) ? wholeNumber(text) : text || null;
    if (value !== null) state[name] = value;
  }
  return state;
}

/** Return the parts of a query that are no part of an address, as they are written there. */
export function unknownParts(search) {
  const seen = new Set();
  const isKnown = ([name, value]) => {
    if (name === "open") return true;
    if (!PARTS.includes(name) || seen.has(name)) return false;
    seen.add(name);
    return !NUMBERS.includes(name) || wholeNumber(value) !== null;
  };
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
  for (const module of state.open ?? []) query.append("open", module);
  for (const name of PARTS) {
    const value = state[name];
    if (value !== undefined && value !== null && value !== "") query.append(name, String(value));
  }
  const text = query.toString();
  return text ? `/?${text}` : "/";
}

/** Return the name of the view that shows a state. */
export function viewOf(state) {
  if (state.page) return PAGES.includes(state.page) ? state.page : "unknown";
  if (state.alert) return "alert";
  return state.run === undefined ? "runs" : "run";
}
