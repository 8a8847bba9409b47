// How a run is: the status in words, every reason, what can be done, and a line of numbers.

import { formatAddress } from "../address.js";
import { actionsOf, alertAddress, inOrder } from "./alerts.js";
import { element, fill, nameOf, printable, setText } from "../element.js";
import { setIcon } from "../icon.js";
import { count, numberOf, short, whole } from "../numbers.js";
import { scoreOf } from "../views/runs.js";
import { statusOf } from "../status.js";
import { clock, now, span } from "../time.js";
import { markOf, OVER, PHASE_SENTENCES, STATUS_SENTENCES } from "../words.js";

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
    this.aroundOf = aroundOf;
    this.health = null;
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
    const was = verdict.querySelector(".age");
    const lead = firing[0];
    const key = JSON.stringify([
      health.status,
      health.phase,
      health.reasons,
      firing.map((alert) => [
        alert.id,
        alert.severity,
        alert.acknowledged,
        alert.silenced,
        alert.message,
      ]),
    ]);
    if (verdict.dataset.key !== key || !was) {
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
          element("p", { class: "facts" }),
        ),
        element("ul", { class: "reasons" }, this.reasons(health, firing)),
      );
    }
    fill(verdict.querySelector(".facts"), this.facts(health, lead));
    this.age();
  }

  reasons(health, firing) {
    const told = new Map(firing.map((alert) => [alert.message, alert]));
    const most = 6;
    const items = health.reasons.slice(0, most).map((reason, at) => {
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
    if (health.reasons.length > most)
      items.push(
        element(
          "li",
          { class: "soft" },
          `and ${count(health.reasons.length - most, "further reason")}: all alerts are below`,
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

  facts(health, lead) {
    const item = (name, value, title) =>
      element("span", { title }, `${name} `, element("b", {}, value));
    const good = health.last_good_step ?? lead?.origin?.last_good_step ?? null;
    const bad = health.layers.nonfinite;
    return [
      item("step", health.step === null ? "none yet" : whole(health.step)),
      health.score.last === null
        ? null
        : item(
            "score",
            `${scoreOf(health.score.last)}${numberOf(health.score.min) < numberOf(health.score.last) ? `, least ${scoreOf(health.score.min)}` : ""}`,
            `of the last ${whole(health.window.steps)} steps`,
          ),
      item("norm", short(health.gradient_norm.last)),
      health.loss === null ? null : item("loss", short(health.loss)),
      bad
        ? item("not finite", `${whole(bad)} of ${count(health.layers.total, "layer")}`)
        : item("layers", whole(health.layers.total)),
      good === null
        ? null
        : item(
            "last good step",
            whole(good),
            "the checkpoint to go back to is of this step or before",
          ),
      health.first_bad
        ? item(
            "first NaN or Inf at",
            element(
              "a",
              {
                href: formatAddress({
                  ...this.page.state,
                  ...this.aroundOf(health.first_bad.step),
                  step: health.first_bad.step,
                  layer:
                    health.first_bad.first_gradient ??
                    health.first_bad.layer ??
                    health.first_bad.layers?.[0],
                }),
              },
              `step ${whole(health.first_bad.step)}${health.first_bad.rank === null ? "" : `, rank ${health.first_bad.rank}`}`,
            ),
          )
        : null,
      element(
        "span",
        { class: "age" },
        OVER.has(health.phase) ? `${health.phase} ${clock(health.updated_at)}` : "",
      ),
    ];
  }

  /** Say how long ago the last step was. */
  age() {
    const { health } = this;
    const age = this.element.querySelector(".age");
    if (!age || !health || OVER.has(health.phase) || health.step === null) return;
    setText(age, `last step ${span((now() - Date.parse(health.updated_at)) / 1000)} ago`);
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
