// Curves of what is neither a layer nor the run: gains of blocks, ratios of groups.

import { Chart } from "../charts/chart.js";
import { SeriesSource } from "../data/rundata.js";
import { element, printable } from "../element.js";

// Lines of one chart, in their order: colour alone tells nobody apart.
const DASHES = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]];

/** One chart of them. */
export class ItemCurves {
  /**
   * @param {any} page
   * @param {string} run
   * @param {number|undefined} attempt
   * @param {{kind: "block"|"group", column: string, title: string}} what
   */
  constructor(page, run, attempt, { kind, column, title }) {
    Object.assign(this, { page, run, attempt, kind, column, names: [] });
    const onRange = (from, to) => page.go({ from, to, last: undefined });
    this.chart = new Chart({ title, height: 130, onRange });
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
