// A line of numbers about a run. Each has its place: only its text changes, so that a link in it
// stays where the keyboard is.

import { formatAddress } from "../address.js";
import { element, setText, shorten } from "../element.js";
import { count, numberOf, scoreText, seconds, short, whole } from "../numbers.js";
import { clock, now, span } from "../time.js";
import { OVER } from "../words.js";

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

/** The line. */
export class RunFacts {
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
      element("b", {}, this.link),
      this.where,
    );
    this.heard = element("span", { class: "age" });
    this.element = element(
      "p",
      { class: "facts" },
      [...this.places.values()],
      this.first,
      this.heard,
    );
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
