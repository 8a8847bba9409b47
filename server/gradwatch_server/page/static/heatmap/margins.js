// What stands around the heatmap: names of rows, marks beside them, and the steps above.

import { button, element, fill, printable } from "../element.js";
import { namedLayers } from "./names.js";
import { whole } from "../numbers.js";

const LEAST_LABEL = 13; // pixels
const LETTER = 6.7; // pixels, of the labels' font
const NARROW = 1 / 8; // of all layers: an alert of no more has marks beside them

/** The margins of one picture. */
export class Margins {
  /** @param {{module: (name: string) => void, layer: (name: string) => void}} choose */
  constructor(choose) {
    this.choose = choose;
    this.labels = element("div.labels");
    this.gutter = element("div.gutter", { "aria-hidden": "true" });
    this.ruler = element("div.ruler", { "aria-hidden": "true" });
    this.drawn = {};
  }

  /** Give them the height of the picture. */
  resize(height) {
    this.labels.style.height = this.gutter.style.height = `${height + 2}px`;
  }

  /** Draw them for a picture: its cells, rows, size, and the alerts in it. */
  draw(picture) {
    Object.assign(this, picture);
    const { rows, folded, height, width, alerts, cells } = picture;
    const bad = [[...cells.badRows()], cells.badColumns()];
    const narrow = alerts.filter((alert) => alert.num_layers <= cells.rows * NARROW);
    const named = narrow.flatMap(namedLayers);
    const places = [rows, folded, height, width, this.labels.clientWidth];
    // They stay as they are as long as they say the same: one may be in somebody's click.
    if (this.isNew("labels", [places, bad[0], named]))
      this.drawLabels(new Set(bad[0]), new Set(named.map((name) => cells.names.indexOf(name))));
    const begins = alerts.map((alert) => alert.origin?.step ?? alert.first_step);
    if (this.isNew("ruler", [width, cells.steps, bad[1], begins])) this.drawRuler(bad[1], begins);
  }

  isNew(part, shown) {
    const text = JSON.stringify(shown);
    const isNew = this.drawn[part] !== text;
    this.drawn[part] = text;
    return isNew;
  }

  top(row) {
    return (row * this.height) / this.rows.length;
  }

  drawLabels(badRows, namedRows) {
    const made = [];
    const marks = { bad: [], alert: [] };
    const size = this.height / this.rows.length;
    let free = -Infinity;
    this.rows.forEach((row, at) => {
      const middle = this.top(at) + size / 2;
      const has = (layers) => row.kind !== "head" && row.layers.some((layer) => layers.has(layer));
      if (has(badRows)) marks.bad.push(middle);
      else if (has(namedRows)) marks.alert.push(middle);
      if (size < LEAST_LABEL && !this.folded) return;
      made.push(this.labelOf(row, middle));
    });
    if (size < LEAST_LABEL && !this.folded)
      this.brackets(made, (middle) => middle - free >= LEAST_LABEL && ((free = middle), true));
    fill(this.labels, made);
    fill(
      this.gutter,
      this.gutterBrackets(),
      Object.entries(marks).map(([kind, middles]) =>
        spaced(middles, 7).map((middle) => place(element("span", { class: kind }, "◂"), middle)),
      ),
    );
  }

  // Rows too thin for a name: one name for each module, where there is room.
  brackets(made, hasRoom) {
    for (const { module, first, layers } of this.modules()) {
      const middle = Math.max(7, (this.top(first) + this.top(first + layers.length)) / 2);
      if (hasRoom(middle))
        made.push(this.labelOf({ kind: "fold", label: module, module, layers }, middle));
    }
  }

  gutterBrackets() {
    if (this.folded) return [];
    return this.modules().map(({ first, layers }) => {
      const bracket = element("i");
      const height = this.top(first + layers.length) - this.top(first);
      bracket.style.top = `${this.top(first) + 1}px`;
      bracket.style.height = `${Math.max(1, height - 2)}px`;
      return bracket;
    });
  }

  // The modules of the rows that are shown, one for each layer.
  modules() {
    const found = [];
    this.rows.forEach(({ module, layers }, row) => {
      const last = found[found.length - 1];
      if (last?.module === module) last.layers.push(...layers);
      else found.push({ module, first: row, layers: [...layers] });
    });
    return found;
  }

  labelOf(row, middle) {
    const isModule = row.kind !== "layer";
    const arrow = row.kind === "head" ? "▾ " : this.folded && row.kind === "fold" ? "▸ " : "";
    const isCounted = isModule && row.layers.length > 1 && this.labels.clientWidth > 150;
    const after = isCounted ? ` (${row.layers.length})` : "";
    const room = Math.floor((this.labels.clientWidth - 8) / LETTER) - arrow.length - after.length;
    const label = `${arrow}${endOf(row.label, Math.max(4, room))}${after}`;
    const act = () =>
      isModule
        ? this.choose.module(row.module)
        : this.choose.layer(this.cells.names[row.layers[0]]);
    const made = button(label, act, {
      class: row.kind === "head" ? "head" : "",
      title: printable(isModule ? row.module : this.cells.names[row.layers[0]]),
      tabindex: "-1",
    });
    return place(made, Math.min(this.height - 6, Math.max(7, middle)));
  }

  drawRuler(badColumns, begins) {
    const { cells } = this;
    const parts = [];
    for (const step of roundSteps(cells.steps, Math.max(2, Math.floor(this.width / 90)))) {
      const column = cells.columnOf(step);
      if (column >= 0) parts.push(this.onRuler(element("span", whole(step)), column));
    }
    const bad = new Set(badColumns);
    for (const column of spaced(badColumns, (6 * cells.columns) / this.width))
      parts.push(this.onRuler(element("span.bad", "▼"), column));
    for (const step of begins) {
      const column = cells.columnOf(step);
      if (column >= 0 && !bad.has(column))
        parts.push(this.onRuler(element("span.alert", "│"), column));
    }
    fill(this.ruler, parts);
  }

  onRuler(made, column) {
    made.style.left = `${((column + 0.5) * 100) / this.cells.columns}%`;
    return made;
  }
}

// Round steps between the first and the last, no more than so many.
function roundSteps(steps, most) {
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const least = Math.max(1, (last - first) / most);
  const power = 10 ** Math.floor(Math.log10(least));
  const every = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= least);
  const found = [];
  for (let step = Math.ceil(first / every) * every; step <= last; step += every) found.push(step);
  return found;
}

function place(made, middle) {
  made.style.top = `${middle}px`;
  return made;
}

// Layers differ at the end of their names: where there is no room the beginning goes.
function endOf(name, most) {
  const text = printable(name);
  return text.length <= most ? text : `…${text.slice(1 - most)}`;
}

function spaced(values, least) {
  let last = -Infinity;
  return values.filter((value) => value - last >= least && ((last = value), true));
}
