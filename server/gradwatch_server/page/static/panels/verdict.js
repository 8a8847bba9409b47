// How a run is: the status in words, every reason, what can be done, and a line of numbers.

import { formatAddress } from "../address.js";
import { actionsOf, alertAddress, inOrder } from "./alerts.js";
import { element, fill, nameOf, printable, setText, shorten } from "../element.js";
import { count, numberOf, scoreText, seconds, short, whole } from "../numbers.js";
import { mark, setIcon, statusOf } from "../status.js";
import { clock, now, span } from "../time.js";
import { OVER, PHASE_SENTENCES, STATUS_SENTENCES } from "../words.js";

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
      "section.verdict",
      { "aria-label": "How it is" },
      element("h1", nameOf(run)),
      element("p.soft", "Asking how it is…"),
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
          "div.top",
          element(
            "h1",
            element("span.unseen", `${printable(this.run)}: `),
            statusOf(health.status, health.phase),
          ),
          this.facts.element,
        ),
        element("ul.reasons", this.reasons(health, told)),
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
        alert && mark(alert.severity),
        element(at ? "span.text" : "span.text.first", printable(reason)),
        alert && element("a.nowrap", { href: alertAddress(alert) }, "Open"),
        alert && actionsOf(alert, this.page),
      );
    });
    const more = health.reasons.length - MOST_REASONS;
    const known = [STATUS_SENTENCES[health.status], PHASE_SENTENCES[health.phase]];
    if (more > 0)
      items.push(element("li.soft", `and ${count(more, "further reason")}: all alerts are below`));
    if (!items.length) items.push(element("li.soft", known.filter(Boolean).join(" ")));
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
      else heading.append(element("span.was.soft", text));
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
      element("h1", gone),
      element("p", printable(error.message)),
      element("p", element("a", { href: "/" }, "To all runs")),
    );
  }
}

const PLACES = [
  "step",
  "score",
  "norm",
  "loss",
  "step time",
  "not finite",
  "layers",
  "last good step",
  "measured",
];

// A line of numbers. Each has its place: only its text changes, so that a link in it stays where the
// keyboard is.
class RunFacts {
  /**
   * @param {any} page
   * @param {(step: number) => Object} aroundOf what an address needs so that a step is in the picture
   */
  constructor(page, aroundOf) {
    this.page = page;
    this.aroundOf = aroundOf;
    this.places = new Map(
      PLACES.map((name) => [name, element("span", { hidden: true }, `${name} `, element("b"))]),
    );
    this.link = element("a");
    this.where = element("span");
    this.first = element(
      "span",
      { hidden: true },
      "first NaN or Inf at ",
      element("b", this.link),
      this.where,
    );
    this.heard = element("span.age");
    this.element = element("p.facts", [...this.places.values()], this.first, this.heard);
  }

  /** Show a health; `lead` is the first alert that fires, if one does. */
  show(health, lead) {
    const { score, layers, window: kept } = health;
    const isLower = numberOf(score.min) < numberOf(score.last);
    const least = isLower ? `, least ${scoreText(score.min)}` : "";
    this.put("step", health.step === null ? "none yet" : whole(health.step));
    this.put("score", score.last === null ? null : `${scoreText(score.last)}${least}`);
    this.places.get("score").title =
      `1 is well, 0 is broken: the newest, and the least of the last ${whole(kept.steps)} steps`;
    this.put("norm", health.step === null ? null : short(health.gradient_norm.last));
    this.put("loss", health.loss === null ? null : short(health.loss));
    const usual = numberOf(health.usual_step_time_s);
    const time = numberOf(health.step_time_s) === null ? null : seconds(health.step_time_s);
    this.put("step time", time && `${time}${usual === null ? "" : `, usual ${seconds(usual)}`}`);
    const bad = layers.nonfinite;
    this.put("not finite", bad ? `${whole(bad)} of ${count(layers.total, "layer")}` : null);
    this.put("layers", bad ? null : whole(layers.total));
    const good = health.last_good_step ?? lead?.origin?.last_good_step ?? null;
    this.put("last good step", good === null ? null : whole(good));
    this.places.get("last good step").title =
      "the checkpoint to go back to is of this step or before";
    this.put("measured", health.pace ?? null);
    this.showFirst(health.first_bad);
    this.age(health);
  }

  put(name, text) {
    const place = this.places.get(name);
    place.hidden = text === null;
    if (text !== null) setText(place.lastChild, text);
  }

  showFirst(bad) {
    this.first.hidden = !bad;
    if (!bad) return;
    const rank = bad.rank === null ? "" : `, rank ${bad.rank}`;
    const step = whole(bad.step);
    const good = bad.last_good_step ?? bad.step - 1;
    const from = good < bad.step - 1 ? `steps ${whole(good)} to` : "step";
    setText(this.link, `${from} ${step}${rank}`);
    setText(this.where, whereOf(bad));
    this.link.href = formatAddress({
      ...this.page.state,
      ...this.aroundOf(bad.step),
      step: bad.step,
      layer: bad.first_gradient ?? bad.layer ?? bad.layers?.[0],
    });
  }

  /** Say how long ago the last step was, or since when it is over. */
  age(health) {
    if (OVER.has(health.phase))
      return setText(this.heard, `${health.phase} ${clock(health.updated_at)}`);
    const age = span((now() - Date.parse(health.updated_at)) / 1000);
    setText(this.heard, health.step === null ? "" : `last step ${age} ago`);
  }
}

// Where in the model it was, as far as that is known: nothing is guessed.
function whereOf({ layer, module, bad_loss: isLossBad, first_gradient: gradient }) {
  if (layer) return ` in ${shorten(layer, 60)}`;
  const born = module ? `module ${shorten(module, 60)}` : "the loss or the forward pass";
  if (!module && !isLossBad) return "";
  return gradient ? `: ${born}, then the gradient of ${shorten(gradient, 60)}` : `: ${born}`;
}
