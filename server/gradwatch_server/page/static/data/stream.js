// The alert stream, read by fetch: it carries the token, sees heartbeats, and comes back by itself.

import { ApiError, authorization, pathOf } from "./api.js";

const SILENT_MS = 35000; // the aggregator says something every 15 s
const HIDDEN_MS = 20000; // a browser has six connections to one origin, for all its tabs
const MOST_STREAMS = 3; // of one browser; a further tab sees alerts at its next look
const DELAYS_MS = [500, 1000, 2000, 4000, 8000, 15000, 30000];

/**
 * Split what arrives into server-sent events.
 *
 * @returns {(text: string) => {id: string|null, data: string}[]}
 */
export function eventParser() {
  let rest = "";
  return (text) => {
    const blocks = (rest + text).split("\n\n");
    rest = blocks.pop();
    return blocks.map(parseEvent).filter((event) => event.data !== "");
  };
}

function parseEvent(block) {
  const found = { id: null, data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon < 1) continue; // a comment
    const value = line.slice(colon + 1).replace(/^ /, "");
    const field = line.slice(0, colon);
    if (field === "data") found.data += (found.data ? "\n" : "") + value;
    else if (field === "id") found.id = value;
  }
  return found;
}

/** One stream for a tab that is seen; `take` gets its alerts, `changed` each new state. */
export class Stream {
  /**
   * @param {{run: string|null, take: (alert: any) => void,
   *   changed: (state: string) => void}} settings states: connecting, live, gone, hidden, crowded,
   *   refused (by the token), unread (this browser, or something before the aggregator, has none)
   */
  constructor({ run, take, changed }) {
    this.run = run;
    this.take = take;
    this.changed = changed;
    this.state = "connecting";
    this.heard_ms = performance.now();
    this.retry_ms = 0; // when the next try is, by performance.now()
    this.cursor = null;
    this.failures = 0;
    this.closed = false;
    this.peers = new Map();
    this.wire();
    this.connect();
  }

  wire() {
    this.onVisible = () => this.visibility();
    this.onOnline = () => this.retry();
    document.addEventListener("visibilitychange", this.onVisible);
    window.addEventListener("online", this.onOnline);
    this.watch = setInterval(() => this.look(), 1000);
    this.name = Math.random().toString(36).slice(2);
    this.channel = "BroadcastChannel" in window ? new BroadcastChannel("gradwatch.streams") : null;
    if (this.channel) this.channel.onmessage = ({ data }) => this.hear(data);
  }

  hear({ name, streaming }) {
    if (streaming) this.peers.set(name, performance.now());
    else this.peers.delete(name);
  }

  tell(streaming) {
    this.channel?.postMessage({ name: this.name, streaming });
  }

  look() {
    const at = performance.now();
    if (this.state === "live") {
      this.tell(true);
      if (at - this.heard_ms > SILENT_MS) this.drop();
    }
    for (const [name, told_ms] of this.peers) if (at - told_ms > 5000) this.peers.delete(name);
    if (this.state === "crowded" && this.peers.size < MOST_STREAMS) this.retry();
  }

  visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.hide(), HIDDEN_MS);
    else if (this.state !== "live") this.retry();
  }

  hide() {
    this.become("hidden");
    this.stop();
  }

  /** Try again now. */
  retry() {
    if (this.closed || this.state === "live" || this.state === "refused") return;
    this.failures = 0;
    this.stop();
    this.connect();
  }

  /** Begin anew, after a token was given. */
  reopen() {
    this.state = "connecting";
    this.retry();
  }

  drop() {
    this.stop();
    this.fail();
  }

  stop() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
    this.tell(false);
  }

  become(state) {
    if (this.closed || this.state === state) return;
    this.state = state;
    this.changed(state);
  }

  async connect() {
    if (this.peers.size >= MOST_STREAMS) return this.become("crowded");
    if (!("TextDecoderStream" in globalThis)) return this.become("unread");
    const abort = new AbortController();
    this.abort = abort;
    try {
      await this.read(abort.signal);
      if (!abort.signal.aborted) this.fail();
    } catch (error) {
      if (abort.signal.aborted || this.closed) return;
      if (error instanceof ApiError && error.status === 401) this.become("refused");
      else this.fail(error instanceof ApiError ? "unread" : "gone");
    }
  }

  async read(signal) {
    const headers = { ...authorization(), Accept: "text/event-stream" };
    if (this.cursor !== null) headers["Last-Event-ID"] = this.cursor;
    const path = pathOf("/alerts/stream", { run: this.run, silenced: "true" });
    const answer = await fetch(path, { headers, signal, cache: "no-store" });
    if (!answer.ok) throw new ApiError(answer.status, "");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const parse = eventParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.heard_ms = performance.now();
      this.failures = 0;
      this.become("live");
      for (const event of parse(value)) this.pass(event);
    }
  }

  pass({ id, data }) {
    if (id !== null) this.cursor = id;
    try {
      this.take(JSON.parse(data));
    } catch (error) {
      console.error("an event of the stream", error);
    }
  }

  // Somebody who answers, but with no stream, is asked for alerts as for all else.
  fail(state = "gone") {
    if (this.closed) return;
    const delay_ms =
      DELAYS_MS[Math.min(this.failures, DELAYS_MS.length - 1)] * (0.8 + 0.4 * Math.random());
    this.failures += 1;
    this.retry_ms = performance.now() + delay_ms;
    this.become(state);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), delay_ms);
  }

  /** End it for good. */
  close() {
    this.stop();
    this.closed = true;
    clearInterval(this.watch);
    clearTimeout(this.hiding);
    this.channel?.close();
    document.removeEventListener("visibilitychange", this.onVisible);
    window.removeEventListener("online", this.onOnline);
  }
}
