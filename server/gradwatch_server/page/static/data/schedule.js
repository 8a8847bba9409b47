// When something is asked for again: once a second at most, one request at a time, only if seen.

/** Runs one piece of work again and again, as often as it is marked and no oftener. */
export class Schedule {
  /**
   * @param {() => Promise<void>} work
   * @param {number} every_ms least time from one beginning to the next
   */
  constructor(work, every_ms = 1000) {
    this.work = work;
    this.every_ms = every_ms;
    this.marked = false;
    this.running = false;
    this.stopped = false;
    this.began_ms = -Infinity;
    this.onVisible = () => this.plan();
    document.addEventListener("visibilitychange", this.onVisible);
  }

  /** Say that there may be something new. */
  mark() {
    this.marked = true;
    this.plan();
  }

  plan() {
    if (!this.marked || this.running || this.stopped || document.hidden) return;
    clearTimeout(this.timer);
    const wait_ms = Math.max(0, this.began_ms + this.every_ms - performance.now());
    this.timer = setTimeout(() => this.run(), wait_ms);
  }

  async run() {
    if (this.running || this.stopped) return;
    this.running = true;
    this.marked = false;
    this.began_ms = performance.now();
    try {
      await this.work();
    } finally {
      this.running = false;
    }
    this.plan();
  }

  /** Do no more. */
  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.onVisible);
  }
}
