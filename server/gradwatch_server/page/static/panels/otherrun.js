// Another run beside the one that is shown: a dashed line in each chart, and what differs in words.

import { getJson } from "../data/api.js";
import { healthQuestion, rangeParameters, RUN_CURVES } from "../data/questions.js";
import { SeriesSource } from "../data/rundata.js";
import { element, fill, printable, setText, shorten } from "../element.js";
import { short, whole } from "../numbers.js";
import { hasAny, nullable } from "../charts/scale.js";

const EVERY_MS = 5000;
const SELDOM_MS = 60000; // more, until it is asked again for what was not there
const MOST = 1000; // runs to choose from
const DASH = [4, 3];
const SAID = [
  ["loss", "loss"],
  ["lr", "learning rate"],
];

export class OtherRun {
  constructor(page, run) {
    Object.assign(this, { page, run });
    const label = "Compare with a run";
    const names = element("datalist", { id: "other-runs" });
    this.input = element("input", {
      type: "search",
      list: names.id,
      placeholder: label,
      "aria-label": label,
      onfocus: () => this.offer(names),
      onchange: () => page.go({ beside: this.input.value.trim() }),
    });
    this.controls = [this.input, names];
    this.words = element("p.soft", { hidden: true });
    this.forget();
  }

  forget() {
    this.source = null;
    this.health = null;
    this.key = null;
    this.due_ms = 0;
    this.words.hidden = true;
  }

  async offer(names) {
    const runs = await getJson("/runs", { limit: MOST }).catch(() => []);
    const others = runs.filter(({ run }) => run !== this.run);
    fill(
      names,
      others.map(({ run, status }) => element("option", { value: run }, status)),
    );
  }

  /** Bring the other run up to date, over the steps of this one; tell whether it was asked for. */
  async load(state, [from, to]) {
    const { beside: name } = state;
    if (document.activeElement !== this.input) this.input.value = name ?? "";
    const key = JSON.stringify([name, rangeParameters(state)]);
    if (this.source?.run !== name) this.forget();
    if (this.key === key && performance.now() < this.due_ms) return false;
    this.key = key;
    if (!name) return true;
    this.due_ms = performance.now() + EVERY_MS;
    this.source ??= new SeriesSource(name, undefined, { columns: RUN_CURVES });
    try {
      [this.health] = await Promise.all([
        getJson(...healthQuestion(name)),
        this.source.load({ from, to }),
      ]);
    } catch (error) {
      if (error.status === undefined || error.isGone) throw error;
      this.due_ms += SELDOM_MS;
      this.health = null;
      const says = { 404: "is not there", 422: `has no step up to ${whole(to)}` }[error.status];
      this.say(`The run ${printable(name)} ${says ?? error.message}: nothing to compare with.`);
    }
    return true;
  }

  /** Return steps and curves of a column of this run, with those of the other one if it has any. */
  joined(own, column) {
    const curve = own.of(column);
    const curves = curve ? [{ ...curve, style: 1 }] : [];
    const other = this.health && this.source.found;
    const its = other?.of(column);
    if (!curve || !its || !hasAny(its) || other.width !== own.width) return { x: own.x, curves };
    const x = [...new Set([...own.x, ...other.x])].sort((one, two) => one - two);
    const name = shorten(this.source.run, 24);
    return {
      x,
      curves: [
        { ...onto(x, own.x, curve), label: "this run", style: 1 },
        { ...onto(x, other.x, its), label: name, style: 3, dash: DASH },
      ],
    };
  }

  /** Say what differs, at the newest step that both have. */
  compare(own, health) {
    const other = this.health && this.source.found;
    if (!other || !own || !health) return;
    if (other.width !== own.width && other.x.length)
      return this.say(
        `No line of ${printable(this.source.run)}: here its steps are kept by ` +
          `${whole(other.width)}, those of this run by ${whole(own.width)}.`,
      );
    const places = new Map(Array.from(other.x, (step, at) => [step, at]));
    const has = (curves, at) => nullable(curves.of("loss")?.last[at]) !== null;
    let at = own.x.length - 1;
    while (at >= 0 && !(has(own, at) && places.has(own.x[at]) && has(other, places.get(own.x[at]))))
      at -= 1;
    const parts = at < 0 ? ["No step of both has a loss"] : [];
    if (at >= 0) {
      const pair = (column) => [
        own.of(column)?.last[at],
        other.of(column)?.last[places.get(own.x[at])],
      ];
      const said = SAID.map(([column, label]) => [label, ...pair(column).map(nullable)])
        .filter(([, one, two]) => one !== null && two !== null)
        .map(([label, one, two]) => `${label} ${short(one)}, there ${short(two)}`);
      parts.push(`At step ${whole(own.x[at])}: ${said.join("; ")}`);
    }
    parts.push(`first NaN or Inf ${firstBad(health)}, there ${firstBad(this.health)}`);
    this.say(`Beside ${printable(this.source.run)} (${this.health.status}). ${parts.join("; ")}.`);
  }

  say(text) {
    this.words.hidden = false;
    setText(this.words, text);
  }
}

function firstBad({ first_bad: found }) {
  return found ? `at step ${whole(found.step)}` : "at no step";
}

// Return a curve at other steps: nothing where it has none.
function onto(x, steps, curve) {
  const places = new Map(Array.from(steps, (step, at) => [step, at]));
  const at = x.map((step) => places.get(step));
  const moved = (values, none) => values && at.map((place) => values[place] ?? none);
  const made = { ...curve };
  for (const name of ["last", "min", "max"]) made[name] = moved(curve[name], NaN);
  for (const name of ["bad", "nan", "inf", "zero"]) made[name] = moved(curve[name], 0);
  return made;
}
