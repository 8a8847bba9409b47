// How old what is shown is: a word that is never green, for an old green is the worst of all.

import { clock, now, span } from "./time.js";

const GONE_MS = 2000; // without an answer, after the stream has broken
const STALE_MS = 15000; // without an answer, though the stream goes on

/** Knows when the page last heard of what it shows. */
export class Freshness {
  constructor(changed) {
    this.changed = changed;
    this.reset();
    this.streamState = "connecting";
    this.isOld = false;
    this.wantsToken = false;
  }

  /** Another view begins. */
  reset() {
    this.heard_ms = null; // by the aggregator's clock
    this.heard_at = performance.now();
    this.isMissing = false;
  }

  heard() {
    this.heard_ms = now();
    this.heard_at = performance.now();
    this.isMissing = false;
    this.changed();
  }

  /** Somebody answered that what is shown is not there. */
  missing() {
    this.heard();
    this.isMissing = true;
    this.changed();
  }

  stream(state) {
    this.streamState = state;
    this.changed();
  }

  token(wanted) {
    this.wantsToken = wanted;
    this.changed();
  }

  look() {
    this.changed();
  }

  /** Tell whether nobody answers. */
  get isGone() {
    return this.streamState === "gone" && performance.now() - this.heard_at > GONE_MS;
  }

  /** See whether the aggregator serves another version of the page by now. */
  async checkVersion() {
    const own = document.querySelector("meta[name=gradwatch-static]").content;
    try {
      const text = await (await fetch("/", { cache: "no-store" })).text();
      this.isOld = !text.includes(`content="${own}"`);
      this.changed();
    } catch {
      // gone again
    }
  }

  /** Return the word: `state` for programs, `text` for people, `kind` bad if it is not to be trusted. */
  word({ isPaused, state, view }) {
    const stale = this.heard_ms === null ? "" : ` since ${clock(this.heard_ms)}`;
    const age = span((performance.now() - this.heard_at) / 1000);
    if (this.wantsToken) return { state: "token", text: "token needed", kind: "bad" };
    if (this.isGone) return { state: "gone", text: `aggregator gone${stale}`, kind: "bad" };
    if (this.isOld) return { state: "updated", text: "updated: reload", kind: "note" };
    if (this.isMissing) return { state: "missing", text: "not there", kind: "note" };
    if (isPaused) return { state: "paused", text: `paused, ${age} ago`, kind: "note" };
    if (this.heard_ms === null) return { state: "catching-up", text: "catching up", kind: "note" };
    if (view?.isOver?.()) return { state: "ended", text: view.isOver(), kind: "note" };
    if (performance.now() - this.heard_at > STALE_MS)
      return { state: "stale", text: `stale${stale}`, kind: "bad" };
    if (state.from !== undefined && state.to !== undefined)
      return { state: "fixed", text: "fixed range", kind: "note" };
    return { state: "live", text: `live · ${clock(now())}`, kind: "note" };
  }
}
