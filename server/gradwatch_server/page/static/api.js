// Asks the aggregator: fetch with the token, JSON or tensors, problems as sentences.

import { parseTensors } from "./tensors.js";

const KEY = "gradwatch.token";
const listeners = new Set();
const begun = new Map(); // path → the answer that was asked for ahead
let token = takeFromAddress() ?? stored();

/** What the aggregator said instead of an answer. */
export class ApiError extends Error {
  /**
   * @param {number} status 0 if nobody answered
   * @param {string} detail a sentence
   */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }

  get isGone() {
    return this.status === 0;
  }
}

/** Be called with the problem whenever a token is asked for. */
export function onTokenWanted(listener) {
  listeners.add(listener);
}

/** Use a token from now on; `keep` also on later visits from this device. */
export function setToken(text, keep) {
  token = text;
  try {
    sessionStorage.setItem(KEY, text);
    if (keep) localStorage.setItem(KEY, text);
  } catch {
    // a browser that keeps nothing: it holds until the page is closed
  }
}

/** Return the headers that a request needs. */
export function authorization() {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

// `…/#token=…`: a fragment reaches no log; it leaves the address before anybody copies that.
function takeFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return null;
  history.replaceState(history.state, "", location.pathname + location.search);
  try {
    sessionStorage.setItem(KEY, given);
  } catch {
    // as above
  }
  return given;
}

/** Return a path with parameters; those that are null are left out, arrays are repeated. */
export function pathOf(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of [value].flat()) {
      if (each !== null && each !== undefined) query.append(name, String(each));
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Return the path of a run, or of what is below it. */
export function runPath(run, rest = "") {
  return `/runs/${encodeURIComponent(run)}${rest}`;
}

/** Ask for a path before there is anybody to take the answer: who asks for it next gets it. */
export function askAhead(path) {
  const answer = ask(path, {});
  answer.catch(() => {}); // it is told to whom it is given
  begun.set(path, answer);
}

/** Let go of what was asked for ahead and not taken: by now it is old. */
export function dropAhead() {
  begun.clear();
}

function ask(path, settings) {
  return fetch(path, {
    cache: "no-store",
    ...settings,
    headers: { ...authorization(), ...settings.headers },
  });
}

function takeBegun(path) {
  const answer = begun.get(path);
  begun.delete(path);
  return answer;
}

async function request(path, settings = {}) {
  let answer;
  try {
    answer = await (takeBegun(path) ?? ask(path, settings));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, `The aggregator at ${location.host} does not answer.`);
  }
  if (answer.ok) return answer;
  const problem = new ApiError(answer.status, await sentence(answer));
  if (answer.status === 401) for (const listener of listeners) listener(problem);
  throw problem;
}

async function sentence(answer) {
  try {
    const { detail, title } = await answer.json();
    return String(detail ?? title);
  } catch {
    return `The aggregator answered ${answer.status} ${answer.statusText}.`;
  }
}

/** Return the answer of a path as JSON. */
export async function getJson(path, parameters, signal) {
  return (await request(pathOf(path, parameters), { signal })).json();
}

/** Return a path with parameters that is answered in the layout of safetensors. */
export function tensorsPath(path, parameters) {
  return pathOf(path, { ...parameters, format: "safetensors" });
}

/** Return an answer in the layout of safetensors. */
export async function getTensors(path, parameters, signal) {
  const answer = await request(tensorsPath(path, parameters), { signal });
  return parseTensors(await answer.arrayBuffer());
}

/** Send something that changes something; return the answer, null where there is none. */
export async function send(method, path, body) {
  const answer = await request(path, {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return answer.status === 204 ? null : answer.json();
}
