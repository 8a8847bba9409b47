// Which runs are listed, and in which order: by what the address says.

import { element } from "../element.js";
import { now } from "../time.js";
import { badness, OVER, PHASES, STATUSES } from "../words.js";

const WAIT_MS = 150; // for the next letter

const heardAt = (run) => Date.parse(run.updated_at);
const byName = (one, other) => one.run.localeCompare(other.run);
// Runs that are heard all the time would change places all the time: in minutes they are equal.
const byMinute = (one, other) => minutesAgo(one) - minutesAgo(other) || byName(one, other);

const isBad = (run) => badness(run.status) > badness("healthy");

// Bad ones that run, bad ones that ended, then those of which nobody has to know.
const ORDERS = {
  "worst first": (one, other) =>
    isBad(other) - isBad(one) ||
    OVER.has(one.phase) - OVER.has(other.phase) ||
    badness(other.status) - badness(one.status) ||
    byMinute(one, other),
  "last heard": byMinute,
  name: byName,
  step: (one, other) => (other.step ?? -1) - (one.step ?? -1) || byName(one, other),
};

function minutesAgo(run) {
  return Math.floor((now() - heardAt(run)) / 60000);
}

/** The filter above the list. */
export class RunFilter {
  constructor(page) {
    this.page = page;
    this.search = element("input", {
      type: "search",
      placeholder: "Filter by name",
      "aria-label": "Filter by name",
    });
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => page.go({ q: this.search.value }, { replace: true }), WAIT_MS);
    });
    this.status = this.choice("status", "Status", ["any status", ...STATUSES]);
    this.phase = this.choice("phase", "Phase", ["any phase", ...PHASES]);
    this.sort = this.choice("sort", "Order", Object.keys(ORDERS));
    this.element = element(
      "form",
      {
        class: "filters",
        role: "search",
        onsubmit: (event) => event.preventDefault(),
        hidden: true,
      },
      this.search,
      this.status,
      this.phase,
      this.sort,
    );
  }

  choice(name, label, options) {
    const made = element(
      "select",
      {
        "aria-label": label,
        onchange: () => this.page.go({ [name]: made.selectedIndex ? made.value : "" }),
      },
      options.map((text) => element("option", { value: text }, text)),
    );
    return made;
  }

  /** Show what the address says. */
  take({ q, status, phase, sort }) {
    if (document.activeElement !== this.search) this.search.value = q ?? "";
    this.status.value = status ?? "any status";
    this.phase.value = phase ?? "any phase";
    this.sort.value = sort in ORDERS ? sort : "worst first";
  }

  /** Return those runs that the address asks for, in its order. */
  choose(runs) {
    const { q = "", status, phase, sort } = this.page.state;
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    return runs
      .filter(
        (run) =>
          words.every((word) => run.run.toLowerCase().includes(word)) &&
          (!status || run.status === status) &&
          (!phase || run.phase === phase),
      )
      .sort(ORDERS[sort] ?? ORDERS["worst first"]);
  }
}
