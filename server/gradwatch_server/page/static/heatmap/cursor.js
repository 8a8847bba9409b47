// The cell that a person is at: where it is in the picture, and what is said of it.

import { describe } from "../announce.js";
import { followSteps, tellStep } from "../charts/linked.js";
import { element, fill, nameOf, printable } from "../element.js";
import { short, times, whole } from "../numbers.js";
import { COLUMNS } from "../words.js";
import { isBad, ratioOf, SKIPPED, valueOf, wordOf } from "./codes.js";

const LEAST = 7; // pixels
const GAP = 12; // pixels, between a cell and what is said of it

/** The cursor of one picture. It stays on its layer and step while columns move below it. */
export class HeatCursor {
  /** @param {import("./panel.js").HeatPanel} panel whose cells and rows it points into */
  constructor(panel) {
    this.panel = panel;
    this.place = null; // {row, column}
    this.held = null; // {name, step}
    this.cross = element("div.cross", { hidden: true });
    this.line = element("div.linked", { hidden: true });
    this.readout = element("p.readout", { hidden: true });
    this.isThere = false; // whether the mouse or the keyboard is in the picture
    this.pointTo = (step) => this.point(step);
    this.unfollow = followSteps(this.pointTo);
  }

  /** Go to a cell; `quiet` where it is not to be read out, as below a mouse. */
  moveTo(place, { quiet = false } = {}) {
    this.place = place;
    this.isThere = true;
    const { layer, column } = this.chosen();
    const { names, steps } = this.panel.cells;
    this.held = { name: names[layer], step: steps[column] };
    this.draw(layer, column);
    this.line.hidden = true;
    tellStep(steps[column], this.pointTo);
    if (!quiet) describe(this.sentence(layer, column));
  }

  /** The mouse, or the keyboard, left the picture: the cell stays marked, the charts let go. */
  leave() {
    this.isThere = false;
    this.readout.hidden = true;
    tellStep(null, this.pointTo);
  }

  /** Return the layer and column that its place stands for: of several layers the most urgent. */
  chosen() {
    const { row, column } = this.place;
    const { cells, rows } = this.panel;
    return { layer: cells.worst(rows[row].layers, column), column };
  }

  /** Find its cell again in a picture that was drawn anew; `state` may name another one. */
  restore({ layer: name, step }) {
    const { cells, rows } = this.panel;
    const chosen = JSON.stringify([name, step]);
    if (name && step !== undefined && chosen !== this.taken && cells.columnOf(step) >= 0) {
      this.held = { name, step: cells.steps[cells.columnOf(step)] };
      this.taken = chosen;
    }
    if (!this.held) return;
    const column = cells.columnOf(this.held.step);
    const layer = cells.names.indexOf(this.held.name);
    const row = rows.findIndex((each) => each.layers.includes(layer));
    if (column < 0 || row < 0) {
      this.place = this.held = null;
      this.cross.hidden = this.readout.hidden = true;
      return;
    }
    this.place = { row, column };
    this.draw(layer, column);
  }

  draw(layer, column) {
    const { cells, rows, width, height } = this.panel;
    const size = { width: width / cells.columns, height: height / rows.length };
    const grown = { width: Math.max(size.width, LEAST), height: Math.max(size.height, LEAST) };
    this.cross.hidden = false;
    this.cross.style.left = `${(column + 0.5) * size.width - grown.width / 2}px`;
    this.cross.style.top = `${(this.place.row + 0.5) * size.height - grown.height / 2}px`;
    this.cross.style.width = `${grown.width}px`;
    this.cross.style.height = `${grown.height}px`;
    this.readOut(layer, column);
    this.readout.hidden = !this.isThere;
    if (this.isThere) this.putReadout((column + 0.5) * size.width, size.height);
  }

  // Beside the cell: below it in the upper half of the picture, else above it.
  putReadout(x, rowHeight) {
    const { width, height } = this.panel;
    const { offsetWidth, offsetHeight } = this.readout;
    const y = (this.place.row + 0.5) * rowHeight;
    const left = Math.max(0, Math.min(x + GAP, width - offsetWidth));
    this.readout.style.left = `${left}px`;
    this.readout.style.top = `${y > height / 2 ? y - GAP - offsetHeight : y + GAP}px`;
  }

  // A chart has its cursor at a step.
  point(step) {
    const { cells, width } = this.panel;
    const column = step === null || !cells?.columns ? -1 : cells.columnOf(step);
    this.line.hidden = column < 0;
    if (column >= 0) this.line.style.left = `${((column + 0.5) * width) / cells.columns}px`;
  }

  readOut(layer, column) {
    const { name, step, value, usual, ratio, bad } = this.parts(layer, column);
    fill(
      this.readout,
      element("b", nameOf(name, 4096)),
      ` · ${step} · `,
      element("span", { class: bad ? "bad" : "" }, value),
      [usual, ratio].filter(Boolean).map((text) => ` · ${text}`),
    );
  }

  sentence(layer, column) {
    const { name, step, value, usual, ratio } = this.parts(layer, column);
    return [printable(name), step, value, usual, ratio].filter(Boolean).join(", ");
  }

  parts(layer, column) {
    const { cells, state } = this.panel;
    const code = cells.at(layer, column);
    const usualCode = cells.usual[column * cells.rows + layer];
    const usual = valueOf(usualCode);
    const ratio = ratioOf(code, usualCode);
    const step = cells.steps[column];
    return {
      name: cells.names[layer],
      step:
        cells.width > 1
          ? `steps ${whole(step)}–${whole(step + cells.width - 1)}, the worst`
          : `step ${whole(step)}`,
      value: `${COLUMNS.get(state.column ?? "l2")} ${wordOf(code) ?? short(valueOf(code))}`,
      usual: usual === null ? "" : `usual ${short(usual)}`,
      ratio: ratio === null || (ratio < 1.5 && ratio > 1 / 1.5) ? "" : `${times(ratio)} usual`,
      bad: isBad(code) || code === SKIPPED,
    };
  }

  close() {
    this.unfollow();
  }
}
