// How a run is: the status in words, every reason, what can be done, and a line of numbers.

import { actionsOf, alertAddress, inOrder } from "./alerts.js";
import { element, fill, nameOf, printable, setText } from "../element.js";
import { setIcon } from "../icon.js";
import { count } from "../numbers.js";
import { RunFacts } from "./runfacts.js";
import { statusOf } from "../status.js";
import { span } from "../time.js";
import { markOf, PHASE_SENTENCES, STATUS_SENTENCES } from "../words.js";

const MOST_REASONS = 6;

/** What stands first on the page of a run. */
export class Verdict {
  /**
   * @param {any} page
   * @param {string} run
   * @param {(step: number) => Object} aroundOf what an address needs so that a step is in the picture
   */
  constructor(page, run, aroundOf) {
    this.page = page;
    this.run = run;
    this.health = null;
    this.facts = new RunFacts(page, aroundOf);
    this.element = element(
      "section",
      { class: "verdict", "aria-label": "How it is" },
      element("h1", {}, nameOf(run)),
      element("p", { class: "soft" }, "Asking how it is…"),
    );
  }

  /** Show the health of the run. */
  show(health) {
    const verdict = this.element;
    if (health !== this.health) this.heard_at = performance.now();
    this.health = health;
    const firing = inOrder(health.alerts.items.filter((alert) => alert.state === "firing"));
    setIcon(health.status);
    verdict.className = `verdict is-${health.status}`;
    const told = new Map(firing.map((alert) => [alert.message, alert]));
    const key = JSON.stringify([
      health.status,
      health.phase,
      health.reasons.map((reason) => told.get(reason)?.id ?? null),
      firing.map((alert) => [alert.id, alert.severity, alert.acknowledged, alert.silenced]),
    ]);
    if (verdict.dataset.key !== key) {
      verdict.dataset.key = key;
      fill(
        verdict,
        element(
          "div",
          { class: "top" },
          element(
            "h1",
            {},
            element("span", { class: "unseen" }, `${printable(this.run)}: `),
            statusOf(health.status, health.phase),
          ),
          this.facts.element,
        ),
        element("ul", { class: "reasons" }, this.reasons(health, told)),
      );
    }
    // Some count seconds: their text changes, the buttons beside it stay.
    verdict
      .querySelectorAll(".reasons .text")
      .forEach((node, at) => setText(node, printable(health.reasons[at])));
    this.facts.show(health, firing[0]);
  }

  reasons(health, told) {
    const items = health.reasons.slice(0, MOST_REASONS).map((reason, at) => {
      const alert = told.get(reason);
      return element(
        "li",
        {},
        alert
          ? element(
              "span",
              { class: `mark is-${alert.severity}`, "aria-hidden": "true" },
              markOf(alert.severity),
            )
          : null,
        element("span", { class: at ? "text" : "text first" }, printable(reason)),
        alert
          ? [
              element("a", { href: alertAddress(alert), class: "nowrap" }, "Open"),
              actionsOf(alert, this.page),
            ]
          : null,
      );
    });
    if (health.reasons.length > MOST_REASONS)
      items.push(
        element(
          "li",
          { class: "soft" },
          `and ${count(health.reasons.length - MOST_REASONS, "further reason")}: all alerts are below`,
        ),
      );
    if (!health.reasons.length)
      items.push(
        element(
          "li",
          { class: "soft" },
          [STATUS_SENTENCES[health.status], PHASE_SENTENCES[health.phase]]
            .filter(Boolean)
            .join(" "),
        ),
      );
    return items;
  }

  /** Say how long ago the last step was. */
  age() {
    if (this.health) this.facts.age(this.health);
  }

  /** Say that it was so then, and may be otherwise now; null if it is fresh. */
  setStale(since_ms) {
    const heading = this.element.querySelector("h1");
    if (!this.health || !heading) return;
    const known = heading.querySelector(".was");
    if (since_ms === null) known?.remove();
    else {
      const text = ` · was so ${span((performance.now() - this.heard_at) / 1000)} ago`;
      if (known) setText(known, text);
      else heading.append(element("span", { class: "was soft" }, text));
    }
  }

  /** Say that there is no such run, or no longer. */
  missing(error) {
    const gone = this.health
      ? "This run, or this attempt, is not there any more."
      : "There is no such run or attempt.";
    this.health = null;
    this.element.className = "verdict is-unknown";
    delete this.element.dataset.key;
    fill(
      this.element,
      element("h1", {}, gone),
      element("p", {}, printable(error.message)),
      element("p", {}, element("a", { href: "/" }, "To all runs")),
    );
  }
}
