// What keys do in the picture: those that move its cursor, and those of the whole page.

import { describe } from "../announce.js";
import { namedLayers } from "./names.js";

/** The keys of one picture. */
export class HeatKeys {
  /** @param {import("./panel.js").HeatPanel} panel */
  constructor(panel) {
    this.panel = panel;
  }

  /** Act on a key that was pressed in the picture. */
  pressed(event) {
    const { panel } = this;
    if (event.ctrlKey || event.metaKey || event.altKey || !panel.cells?.columns) return;
    const by = event.shiftKey ? 10 : 1;
    const { row, column } = panel.cursor.place ?? panel.start();
    const moves = {
      ArrowLeft: () => [row, column - by],
      ArrowRight: () => [row, column + by],
      ArrowUp: () => [row - by, column],
      ArrowDown: () => [row + by, column],
      Home: () => [row, 0],
      End: () => [row, panel.cells.columns - 1],
      PageUp: () => [this.nextModule(row, -1), column],
      PageDown: () => [this.nextModule(row, 1), column],
    };
    if (moves[event.key]) {
      const [newRow, newColumn] = moves[event.key]();
      const beyond = newRow - clamp(newRow, panel.rows.length);
      if (beyond) panel.showFrom(panel.firstRow + beyond);
      panel.cursor.moveTo({
        row: clamp(newRow, panel.rows.length),
        column: clamp(newColumn, panel.cells.columns),
      });
    } else if (event.key === "Enter") panel.choose();
    else return;
    event.preventDefault();
  }

  nextModule(row, direction) {
    const { rows } = this.panel;
    let at = row;
    while (rows[at + direction] && rows[at].module === rows[row].module) at += direction;
    return at;
  }

  /** Act on a key of the page; tell whether it was one. */
  key(key) {
    const { panel } = this;
    if (!panel.cells?.columns) return false;
    const acts = {
      n: () => this.nextFault(1),
      N: () => this.nextFault(-1),
      f: () => panel.toggleFold(),
      v: () => panel.look(panel.view === "size" ? "change" : "size"),
      t: () => panel.toggleTable(),
      "+": () => this.zoom(0.5),
      w: () => this.zoom(0.5),
      "-": () => this.zoom(2),
      s: () => this.zoom(2),
      z: () => panel.zoomRows(0.5),
      Z: () => panel.zoomRows(2),
      a: () => this.pan(-0.25),
      d: () => this.pan(0.25),
    };
    if (!Object.hasOwn(acts, key)) return false;
    acts[key]();
    return true;
  }

  nextFault(direction) {
    const { panel } = this;
    const { cells, cursor } = panel;
    const begins = panel.alerts.map((alert) => [alert, cells.columnOf(beginOf(alert))]);
    const faults = [
      ...new Set([...cells.badColumns(), ...begins.map(([, column]) => column)]),
    ].filter((column) => column >= 0);
    faults.sort((one, other) => one - other);
    if (!faults.length) return describe("No NaN, no Inf and no alert in these steps.");
    const now = cursor.place?.column ?? (direction > 0 ? -1 : cells.columns);
    const next =
      direction > 0
        ? (faults.find((column) => column > now) ?? faults[0])
        : (faults.findLast((column) => column < now) ?? faults[faults.length - 1]);
    const [alert] = begins.find(([, column]) => column === next) ?? [];
    const layer = cells.names.indexOf(namedLayers(alert)[0] ?? "");
    const row = panel.rowOf(layer);
    panel.surface.focus();
    cursor.moveTo(row >= 0 ? { row, column: next } : panel.worstAt(next));
  }

  zoom(factor) {
    const [first, last] = this.ends();
    const middle = this.panel.cursor.held?.step ?? last;
    const half = Math.max(4, ((last - first) * factor) / 2);
    this.go(Math.round(middle - half), Math.round(middle + half));
  }

  pan(part) {
    const [first, last] = this.ends();
    const by = Math.max(-first, Math.round((last - first) * part));
    this.go(first + by, last + by);
  }

  ends() {
    const { steps, width } = this.panel.cells;
    return [steps[0], steps[steps.length - 1] + width - 1];
  }

  go(from, to) {
    this.panel.page.go({ from: Math.max(0, from), to, last: undefined });
  }
}

function beginOf(alert) {
  return alert.origin?.step ?? alert.first_step;
}

function clamp(value, size) {
  return Math.min(size - 1, Math.max(0, value));
}
