// Layers × steps: the codes of all cells, kept by column, so that a new step is put at the end.

import { isBad, QUIET, quietOf, urgencyOf } from "./codes.js";

/** The cells of one attempt; the newest columns, as many as were asked for. */
export class Cells {
  /** @param {{arrays: Map, metadata: Object}} answer of `/heatmap` */
  constructor(answer, names) {
    this.names = names;
    this.rows = names.length;
    this.width = Number(answer.metadata.width ?? 1);
    this.steps = [];
    this.code = new Uint16Array(0); // column by column
    this.usual = new Uint16Array(0); // codes of what was usual in each cell
    this.urgency = new Uint8Array(0);
    this.quiet = new Float64Array(this.rows).fill(QUIET); // codes around usual, row by row
    this.most = Infinity;
    this.take(answer);
  }

  get columns() {
    return this.steps.length;
  }

  /** Return these with further columns: from the first of those on they replace. */
  joined(answer) {
    if (answer.arrays.get("step").data.length) this.take(answer);
    return this;
  }

  take({ arrays }) {
    const steps = Array.from(arrays.get("step").data);
    arrays.get("spread").data.forEach((spread, row) => {
      this.quiet[row] = Math.max(this.quiet[row], quietOf(spread));
    });
    if (steps.length) {
      const kept = this.steps.filter((step) => step < steps[0]).length;
      const dropped = Math.max(0, kept + steps.length - this.most);
      for (const name of ["code", "usual"]) {
        const grown = new Uint16Array((kept + steps.length - dropped) * this.rows);
        grown.set(this[name].subarray(dropped * this.rows, kept * this.rows));
        this.transpose(arrays.get(name).data, steps.length, grown, kept - dropped);
        this[name] = grown;
      }
      this.steps = [...this.steps.slice(dropped, kept), ...steps];
    }
    this.judge();
  }

  transpose(code, columns, grown, at) {
    for (let row = 0; row < this.rows; row += 1) {
      let to = at * this.rows + row;
      const from = row * columns;
      for (let column = 0; column < columns; column += 1, to += this.rows)
        grown[to] = code[from + column];
    }
  }

  judge() {
    this.urgency = new Uint8Array(this.code.length);
    for (let at = 0; at < this.code.length; at += 1)
      this.urgency[at] = urgencyOf(this.code[at], this.usual[at], this.quiet[at % this.rows]);
  }

  /** Return the code of a layer at a column. */
  at(row, column) {
    return this.code[column * this.rows + row];
  }

  /** Return the layer of some that is most urgent at a column. */
  worst(layers, column) {
    let found = layers[0];
    for (const layer of layers) {
      if (this.urgency[column * this.rows + layer] > this.urgency[column * this.rows + found])
        found = layer;
    }
    return found;
  }

  /** Return the column that a step is in; -1 if it is in none. */
  columnOf(step) {
    const start = Math.floor(step / this.width) * this.width;
    return this.steps.indexOf(this.width === 1 ? step : start);
  }

  /** Return the columns with a cell that was not finite while the step was taken. */
  badColumns() {
    const found = [];
    for (let column = 0; column < this.columns; column += 1) {
      const end = (column + 1) * this.rows;
      for (let at = column * this.rows; at < end; at += 1) {
        if (isBad(this.code[at])) {
          found.push(column);
          break;
        }
      }
    }
    return found;
  }

  /** Return the layers with such a cell. */
  badRows() {
    const bad = new Set();
    for (let at = 0; at < this.code.length; at += 1)
      if (isBad(this.code[at])) bad.add(at % this.rows);
    return bad;
  }
}
