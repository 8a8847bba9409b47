// What changes seldom, or says little by the step: the ranks, the gains of blocks, the groups.

import { getJson, runPath } from "../data/api.js";
import { element } from "../element.js";
import { numberOf } from "../numbers.js";
import { gainsOf } from "./gains.js";
import { groupsOf } from "./groups.js";
import { ItemCurves } from "./itemcurves.js";
import { Panel } from "./panel.js";
import { rankStrip } from "./ranks.js";

/** Three panels beside one another. */
export class Beside {
  constructor(page, run, attempt) {
    this.run = run;
    this.parameters = { attempt };
    this.gainCurves = new ItemCurves(page, run, attempt, {
      kind: "block",
      column: "gain",
      title: "gain over steps, the blocks farthest from one",
    });
    this.ratioCurves = new ItemCurves(page, run, attempt, {
      kind: "group",
      column: "ratio",
      title: "ratios over steps",
    });
    this.ranks = new Panel("Ranks");
    this.gains = new Panel("Gradient gain from block to block");
    this.groups = new Panel("Groups");
    const panels = [this.ranks, this.gains, this.groups].map((panel) => panel.element);
    this.element = element("div", { class: "columns" }, panels);
  }

  /** Bring them up to date; `health` is that of the run. */
  async load(health) {
    // An aggregator that does not say what a step usually takes has no such curves yet.
    const hasCurves = "usual_step_time_s" in health;
    await Promise.all([
      this.ranks.run(async () => {
        const { ranks } = await this.ask("/ranks");
        this.ranks.fill(rankStrip(ranks, health.first_bad));
      }),
      this.gains.run(async () => {
        const answer = await this.ask("/gains");
        this.gains.fill(gainsOf(answer), this.gainCurves.element);
        if (hasCurves) await this.gainCurves.load(farthest(answer.transitions));
      }),
      this.groups.run(async () => {
        const answer = await this.ask("/groups");
        const ratios = health.groups ?? answer.ratios;
        this.groups.fill(groupsOf(answer, ratios), this.ratioCurves.element);
        if (hasCurves) await this.ratioCurves.load(Object.keys(ratios));
      }),
    ]);
  }

  ask(path) {
    return getJson(runPath(this.run, path), this.parameters);
  }

  redraw() {
    this.gainCurves.redraw();
    this.ratioCurves.redraw();
  }

  close() {
    this.gainCurves.close();
    this.ratioCurves.close();
  }
}

function farthest(transitions) {
  const off = ({ gain }) => {
    const log = Math.abs(Math.log(numberOf(gain) ?? 1));
    return Number.isNaN(log) ? Infinity : log;
  };
  return [...transitions].sort((one, other) => off(other) - off(one)).map(({ from }) => from);
}
