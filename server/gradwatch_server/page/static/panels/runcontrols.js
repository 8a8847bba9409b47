// The choices in the head of a run's page: which attempt, which steps.

import { isFollowing } from "../data/rundata.js";
import { button, element, fill } from "../element.js";
import { whole } from "../numbers.js";

const RANGES = [128, 512, 1024, 2048, 4096];
const USUAL = 512;

/** The controls of one run. */
export class RunControls {
  constructor(page, attempt) {
    Object.assign(this, { page, attempt });
    this.range = element("select", {
      "aria-label": "Steps shown",
      onchange: () => this.chooseRange(),
    });
    this.attempts = element("select", {
      "aria-label": "Attempt",
      hidden: true,
      onchange: () => page.go({ attempt: Number(this.attempts.value) }),
    });
    this.follow = button("Follow", () => this.followNewest(page.state.last), {
      hidden: true,
      title: "Follow the newest steps (l)",
    });
    this.elements = [this.attempts, this.range, this.follow];
  }

  /** Show the attempts of a run; @param {any} facts as `/runs/{run}` gives them */
  showAttempts(facts) {
    const all = facts?.attempts ?? [];
    const key = JSON.stringify(all.map((each) => each.attempt));
    this.attempts.hidden = all.length < 2;
    if (this.attempts.dataset.key === key) return;
    this.attempts.dataset.key = key;
    const current = this.attempt ?? facts?.attempt;
    fill(
      this.attempts,
      all.map(({ attempt }) =>
        element(
          "option",
          { value: attempt, selected: attempt === current },
          `attempt ${attempt} of ${all.length}`,
        ),
      ),
    );
  }

  /** Show which steps a state is about. */
  showRange(state) {
    const isFixed = !isFollowing(state);
    const isAll = state.from === 0 && state.to === undefined;
    const options = RANGES.map((steps) => [String(steps), `last ${whole(steps)} steps`]);
    options.push(["all", "all steps"]);
    if (isFixed && !isAll) options.unshift(["fixed", fixedText(state)]);
    const value = isAll ? "all" : isFixed ? "fixed" : String(state.last ?? USUAL);
    const key = JSON.stringify([options, value]);
    this.follow.hidden = !isFixed;
    if (this.range.dataset.key === key) return;
    this.range.dataset.key = key;
    fill(
      this.range,
      options.map(([name, text]) =>
        element("option", { value: name, selected: name === value }, text),
      ),
    );
  }

  chooseRange() {
    const { value } = this.range;
    if (value === "fixed") return;
    if (value === "all") this.showAll();
    else this.followNewest(Number(value) === USUAL ? undefined : Number(value));
  }

  followNewest(last) {
    this.page.go({ from: undefined, to: undefined, last });
  }

  showAll() {
    this.page.go({ from: 0, to: undefined, last: undefined });
  }
}

function fixedText({ from, to }) {
  const begin = from === undefined ? "the first" : whole(from);
  return `steps ${begin} to ${to === undefined ? "the newest" : whole(to)}`;
}
