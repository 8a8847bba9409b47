// Asks the aggregator: fetch with the token, JSON or tensors, problems as sentences.

const KEY = "gradwatch.token";
const ANSWER_MS = 30000; // who says nothing for so long is not there: a connection may hang for hours
// Types of arrays in the layout of safetensors: 8 bytes of length, a JSON header, arrays.
const KINDS = {
  U8: Uint8Array,
  U16: Uint16Array,
  U32: Uint32Array,
  I32: Int32Array,
  I64: BigInt64Array,
  U64: BigUint64Array,
  F32: Float32Array,
  F64: Float64Array,
};
const listeners = new Set();
let token = stored();
takeFromAddress();

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

/** Return what a person is told of something that could not be changed. */
export function problemOf(error) {
  return error.status === 403
    ? "Your token only reads; this needs the one that writes."
    : error.message;
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
    else localStorage.removeItem(KEY); // one that was kept before is not the one in use
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

/**
 * Use the token of `…/#token=…`, if there is one; tell whether there was. A fragment reaches no log;
 * it leaves the address, and the history, before anybody copies them.
 */
export function takeFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return false;
  history.replaceState(history.state, "", location.pathname + location.search);
  setToken(given, false);
  return true;
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

function ask(path, settings) {
  return fetch(path, {
    cache: "no-cache", // the browser asks with the tag of what it has, which costs little
    signal: AbortSignal.timeout(ANSWER_MS),
    ...settings,
    headers: { ...authorization(), ...settings.headers },
  });
}

async function request(path, settings = {}) {
  const used = token;
  let answer;
  try {
    answer = await ask(path, settings);
  } catch {
    throw new ApiError(0, `The aggregator at ${location.host} does not answer.`);
  }
  if (answer.ok) return answer;
  const problem = new ApiError(answer.status, await sentence(answer));
  // One that was asked with the token before says nothing about this one.
  if (answer.status === 401 && used === token) for (const listener of listeners) listener(problem);
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

// An answer may break off in the middle: that is nobody answering, too.
async function read(answer, kind) {
  try {
    return await answer[kind]();
  } catch {
    throw new ApiError(0, `The answer of ${location.host} broke off.`);
  }
}

/** Return the answer of a path as JSON. */
export async function getJson(path, parameters) {
  return read(await request(pathOf(path, parameters)), "json");
}

/** Return an answer in the layout of safetensors. */
export async function getTensors(path, parameters) {
  return parseTensors(
    await read(
      await request(pathOf(path, { ...parameters, format: "safetensors" })),
      "arrayBuffer",
    ),
  );
}

/** Send something that changes something; return the answer, null where there is none. */
export async function send(method, path, body) {
  const answer = await request(path, {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return answer.status === 204 ? null : read(answer, "json");
}

/**
 * Parse an answer.
 *
 * @param {ArrayBuffer} buffer
 * @returns {{arrays: Map<string, {data: any, shape: number[]}>, metadata: Object<string, string>}}
 */
export function parseTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const { __metadata__: metadata = {}, ...rest } = header;
  const arrays = new Map();
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [begin, end],
    },
  ] of Object.entries(rest)) {
    const Kind = KINDS[dtype];
    const at = 8 + length + begin;
    // A view needs an address that fits its items; where it does not, the bytes are copied.
    const data =
      at % Kind.BYTES_PER_ELEMENT === 0
        ? new Kind(buffer, at, (end - begin) / Kind.BYTES_PER_ELEMENT)
        : new Kind(buffer.slice(at, 8 + length + end));
    arrays.set(name, { data, shape });
  }
  return { arrays, metadata };
}
