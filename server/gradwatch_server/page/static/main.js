// From the address to what is shown, and what keeps that fresh.

import { formatAddress, parseAddress, unknownParts, viewOf } from "./address.js";
import { alertPage } from "./views/alert.js";
import { alertsPage } from "./views/alerts.js";
import { getJson, onTokenWanted, takeFromAddress } from "./data/api.js";
import { element, fill, setText, shorten } from "./element.js";
import { Freshness } from "./freshness.js";
import { Header } from "./header.js";
import { installKeys } from "./keys.js";
import { clearToken, forgetTried, tellGone, tellToken } from "./notice.js";
import { rulesPage, silencesPage } from "./views/listings.js";
import { unknownPage } from "./views/unknown.js";
import { runPage } from "./views/run.js";
import { runsPage } from "./views/runs.js";
import { Schedule } from "./data/schedule.js";
import { Stream } from "./data/stream.js";
import { ageAll, setClock } from "./time.js";

const HIDDEN_MS = 60000;
const COUNT_MS = 10000; // between two looks at what fires in all runs
const OVER_MS = 5000; // nothing comes but another attempt
const VIEWS = {
  alert: alertPage,
  alerts: alertsPage,
  rules: rulesPage,
  run: runPage,
  runs: runsPage,
  silences: silencesPage,
  unknown: unknownPage,
};
const main = document.getElementById("main");

/** The page: what is shown, and what it is told. */
class Page {
  constructor() {
    this.state = parseAddress(location.search);
    this.freshness = new Freshness(() => this.showFreshness());
    this.header = new Header(this);
    this.unknown = element("p.soft", { hidden: true });
    this.view = null;
    this.stream = null;
    this.schedule = null;
    this.isPaused = false;
    this.wasLive = false;
    this.counted_ms = -Infinity;
    onTokenWanted((problem) => this.wantToken(problem));
    installKeys(this);
    addEventListener("hashchange", () => takeFromAddress() && this.tokenGiven());
    addEventListener("popstate", () => this.open(parseAddress(location.search)));
    setInterval(() => this.tick(), 1000);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    document.addEventListener("click", (event) => this.followLink(event));
    addEventListener("resize", () => this.resized());
    this.open(this.state);
  }

  /** Show another state, and put it into the history; `replace` for what moves all the time. */
  go(change, { replace = false } = {}) {
    const next =
      typeof change === "string" ? parseAddress(change.slice(1)) : { ...this.state, ...change };
    const address = formatAddress(next);
    if (address !== location.pathname + location.search) {
      if (replace) history.replaceState(null, "", address);
      else history.pushState(null, "", address);
    }
    this.open(parseAddress(address.slice(1)));
  }

  /** Show some steps. */
  choose = (from, to) => this.go({ from, to, last: undefined });

  // Links to another state of this page load nothing anew.
  followLink(event) {
    const link = event.target.closest?.("a[href]");
    const isPlain =
      event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    if (!link || !isPlain || event.defaultPrevented) return;
    const href = link.getAttribute("href");
    if (href !== "/" && !href.startsWith("/?")) return;
    event.preventDefault();
    this.go(href);
  }

  open(state) {
    const before = this.view && identity(this.state);
    this.state = state;
    this.tellUnknown();
    if (before !== null && before === identity(state)) {
      this.view.show?.(state);
      this.header.draw();
      return;
    }
    this.isPaused = false;
    this.closeView();
    this.view = VIEWS[viewOf(state)](this, state);
    fill(main, this.unknown, this.view.elements);
    main.className = "";
    main.dataset.page = this.view.name;
    this.header.draw();
    this.freshness.reset();
    this.schedule = new Schedule(() => this.refresh(), this.view.every_ms ?? 1000);
    this.follow(state);
    this.schedule.mark();
    if (before !== null) {
      scrollTo(0, 0);
      main.focus({ preventScroll: true });
    }
  }

  tellUnknown() {
    const parts = unknownParts(location.search).map((part) => shorten(part, 60));
    this.unknown.hidden = !parts.length;
    setText(
      this.unknown,
      `Left out of this address, for the page does not know it: ${parts.join(", ")}`,
    );
  }

  closeView() {
    this.schedule?.stop();
    this.view?.close?.();
  }

  /** Open the stream that a view needs, unless it is open. */
  follow(state) {
    const run = state.run ?? null;
    if (this.stream && this.stream.run === run) return;
    this.stream?.close();
    this.stream = new Stream({
      run,
      take: (alert) => this.take(alert),
      changed: (now) => this.streamChanged(now),
    });
  }

  take(alert) {
    this.counted_ms = -Infinity;
    this.view?.take?.(alert);
    if (!this.isWaiting()) this.schedule.mark();
  }

  streamChanged(state) {
    this.freshness.stream(state);
    if (state === "live" || state === "crowded" || state === "unread") this.readClock();
    if (state === "live") {
      // The first time the page itself was just read; after that another version may be served.
      if (this.wasLive) this.freshness.checkVersion();
      this.wasLive = true;
      this.schedule.mark();
    }
    if (state === "refused") getJson("/runs", { limit: 1 }).catch(() => {}); // says what it wants
  }

  async readClock() {
    try {
      setClock((await getJson("/healthz")).now);
    } catch {
      // gone again
    }
  }

  tick() {
    const state = this.stream?.state;
    const at = performance.now();
    const isDue = !this.view?.isOver?.() || at - this.schedule.began_ms > OVER_MS;
    if (isDue && !this.isWaiting() && state !== "gone" && state !== "hidden") this.schedule.mark();
    // A tab that nobody sees still says in its title and icon how it is.
    if (document.hidden && !this.isWaiting() && at - this.schedule.began_ms > HIDDEN_MS) {
      this.schedule.began_ms = at;
      this.refresh();
    }
    this.view?.age?.();
    ageAll(main);
    this.freshness.look();
  }

  // For a person: to go on, or to give a token.
  isWaiting() {
    return this.isPaused || this.freshness.wantsToken;
  }

  async refresh() {
    const view = this.view;
    try {
      await view.refresh();
      if (view === this.view) this.freshness.heard();
      forgetTried();
    } catch (error) {
      if (error.status === undefined) console.error(error);
      if (view === this.view && error.status === 404) {
        view.missing?.(error);
        this.freshness.missing();
      }
    }
    this.count();
    if (view === this.view) document.title = view.title?.() ?? "gradwatch";
  }

  async count() {
    if (performance.now() - this.counted_ms < COUNT_MS) return;
    this.counted_ms = performance.now();
    await this.header.countFiring().catch(() => {}); // that nobody answers is told already
  }

  wantToken(problem) {
    this.freshness.token(true);
    tellToken(problem, () => this.tokenGiven());
  }

  tokenGiven() {
    clearToken();
    this.freshness.token(false);
    this.stream.reopen();
    this.schedule.mark();
  }

  showFreshness() {
    const word = this.freshness.word(this);
    this.header.showFreshness(word);
    const isStale = word.kind === "bad";
    main.classList.toggle("stale", isStale);
    document.body.dataset.state = word.state;
    this.view?.setStale?.(isStale ? this.freshness.heard_ms : null);
    tellGone(this.freshness, this.stream, () => {
      this.stream.retry();
      this.schedule.mark();
    });
  }

  /** Stop or go on following. */
  pause(paused = !this.isPaused) {
    this.isPaused = paused;
    if (!paused) this.schedule.mark();
    this.showFreshness();
  }

  redraw() {
    this.view?.redraw?.();
  }

  resized() {
    clearTimeout(this.resizing);
    this.resizing = setTimeout(() => this.redraw(), 120);
  }
}

// What makes another view of it; all else a view shows by itself.
function identity(state) {
  return JSON.stringify([state.page, state.alert, state.run, state.attempt]);
}

globalThis.gradwatchPage = new Page();
