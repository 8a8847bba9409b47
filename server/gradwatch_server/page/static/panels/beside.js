// What changes seldom, or says little by the step: the ranks, the gains of blocks, the groups.

import { Chart } from "../charts/chart.js";
import { getJson, runPath } from "../data/api.js";
import { SeriesSource } from "../data/rundata.js";
import { element, nameOf, printable, table } from "../element.js";
import { numberOf, short, whole } from "../numbers.js";
import { Panel } from "./panel.js";
import { rankStrip } from "./ranks.js";

// Lines of one chart, in their order: colour alone tells nobody apart.
const DASHES = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]];

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
    this.gains.element.hidden = this.groups.element.hidden = true; // until there are some
    const panels = [this.ranks, this.gains, this.groups].map((panel) => panel.element);
    this.element = element("div.columns", panels);
  }

  /** Bring them up to date; `health` is that of the run. */
  async load(health) {
    await Promise.all([
      this.ranks.run(async () => {
        const { ranks } = await this.ask("/ranks");
        this.ranks.fill(rankStrip(ranks, health.first_bad));
      }),
      this.part(this.gains, async () => {
        const answer = await this.ask("/gains");
        this.gains.element.hidden = !answer.transitions.length;
        if (this.gains.element.hidden) return;
        this.gains.fill(gainsOf(answer), this.gainCurves.element);
        await this.gainCurves.load(farthest(answer.transitions));
      }),
      this.part(this.groups, async () => {
        const answer = await this.ask("/groups");
        this.groups.element.hidden = !answer.groups.length;
        if (this.groups.element.hidden) return;
        const ratios = health.groups ?? answer.ratios;
        this.groups.fill(groupsOf(answer, ratios), this.ratioCurves.element);
        await this.ratioCurves.load(Object.keys(ratios));
      }),
    ]);
  }

  // A part that is missing says so, whatever was in it.
  async part(panel, work) {
    if (!(await panel.run(work))) panel.element.hidden = false;
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

function groupsOf({ groups }, ratios) {
  const rows = groups.map(({ name, layers, l2 }) => [nameOf(name), whole(layers), short(l2)]);
  const compared = Object.entries(ratios).map(([name, ratio]) =>
    element("li", nameOf(name), ` ${short(ratio)}`),
  );
  return [
    table(null, ["group", "layers", "L2 norm"], rows),
    element("ul.row", { "aria-label": "Ratios of root mean squares" }, compared),
  ];
}

function gainsOf({ summary, step, transitions }) {
  const { mean_gain, min_gain, max_gain, num_amplifying, num_damping } = summary;
  const parts = [
    `mean ${short(mean_gain)}, ${short(min_gain)} to ${short(max_gain)} at step ${whole(step)}`,
    `${whole(num_amplifying)} amplifying, ${whole(num_damping)} damping`,
  ];
  return [element("p.soft", parts.join(" · ")), gainBars(transitions)];
}

// Bars on a logarithmic scale, from a gain of one upward and downward.
function gainBars(transitions) {
  const width = 300;
  const height = 64;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const set = (node, values) =>
    Object.entries(values).forEach(([name, value]) => node.setAttribute(name, value));
  set(svg, {
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    class: "gains",
    width: "100%",
    height,
  });
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute(
    "aria-label",
    `Gains from ${printable(transitions[0].from)} on: ${transitions
      .map((each) => short(each.gain))
      .slice(0, 64)
      .join(", ")}`,
  );
  const one = width / transitions.length;
  transitions.forEach((each, at) => {
    const gain = numberOf(each.gain);
    if (gain === null) return;
    const isDrawn = Number.isFinite(gain) && gain > 0;
    const log = isDrawn ? Math.max(-2.5, Math.min(2.5, Math.log2(gain))) : 2.5;
    const bar = document.createElementNS(svg.namespaceURI, "rect");
    const size = Math.max(1.5, (Math.abs(log) * (height / 2 - 2)) / 2.5);
    set(bar, {
      x: at * one + 0.1 * one,
      width: 0.8 * one,
      y: log >= 0 ? height / 2 - size : height / 2,
      height: size,
      class: isDrawn && Math.abs(log) <= 1 ? "calm" : isDrawn ? "far" : "bad",
    });
    const title = document.createElementNS(svg.namespaceURI, "title");
    title.textContent = `${printable(each.from)} from ${printable(each.to)}: ${short(gain)}`;
    bar.append(title);
    svg.append(bar);
  });
  return svg;
}

/** One chart of some blocks or groups. */
class ItemCurves {
  /**
   * @param {any} page
   * @param {string} run
   * @param {number|undefined} attempt
   * @param {{kind: "block"|"group", column: string, title: string}} what
   */
  constructor(page, run, attempt, { kind, column, title }) {
    Object.assign(this, { page, run, attempt, kind, column, names: [] });
    this.chart = new Chart({ title, height: 130, onRange: page.choose });
    this.element = element("div", { hidden: true }, this.chart.element);
  }

  /** Show those of some names, the first ones: they stay the same from one look to the next. */
  async load(names) {
    this.element.hidden = !names.length;
    if (!names.length) return;
    if (!this.names.length || !this.names.every((name) => names.includes(name))) {
      this.names = names.slice(0, DASHES.length);
      const { kind, names: layers } = this;
      this.source = new SeriesSource(this.run, this.attempt, {
        columns: [this.column],
        layers,
        kind,
      });
    }
    const { state } = this.page;
    const curves = await this.source.load(state);
    this.chart.show({
      x: curves.x,
      width: curves.width,
      range: curves.range(state),
      curves: this.names.flatMap((name, at) => {
        const curve = curves.of(this.column, name);
        return curve ? [{ ...curve, label: printable(name), style: at + 1, dash: DASHES[at] }] : [];
      }),
    });
  }

  redraw() {
    this.chart.redraw();
  }

  close() {
    this.chart.close();
  }
}
