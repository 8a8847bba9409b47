// Layers × steps with its labels, ruler, readout and keys: where a fault is seen first.

import { describe } from "../announce.js";
import { isBad, ratioOf, SKIPPED, valueOf, wordOf } from "./codes.js";
import { button, element, fill, nameOf, printable, setText } from "../element.js";
import { colouring, paint, pool, sizeRange } from "./picture.js";
import { legendOf } from "./legend.js";
import { Margins } from "./margins.js";
import { rowsOf } from "./names.js";
import { count, short, times, whole } from "../numbers.js";
import { palette, themeInForce } from "./palette.js";
import { COLUMNS } from "../words.js";
import { worstTable } from "./worst.js";

const MOST_HEIGHT = 460;

/** The picture; `page.go` takes what is chosen in it. */
export class HeatPanel {
  constructor(page) {
    this.page = page;
    this.cells = null;
    this.alerts = [];
    this.order = "registered";
    this.cursor = null; // {row, column}
    this.build();
  }

  build() {
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.cross = element("div", { class: "cross", hidden: true });
    this.dragged = element("div", { class: "drag", hidden: true });
    this.surface = element(
      "div",
      {
        class: "surface",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "heatmap",
        "aria-label": "Layers and steps",
      },
      this.canvas,
      this.cross,
      this.dragged,
    );
    this.margins = new Margins({
      module: (name) => this.toggleModule(name),
      layer: (name) => this.page.go({ layer: name }),
    });
    this.readout = element(
      "p",
      { class: "readout" },
      "Move over the picture, or use the arrow keys in it.",
    );
    this.legend = element("div", { class: "legend" });
    this.table = element("div", { class: "scroll", hidden: true });
    this.picture = element(
      "div",
      { class: "heat" },
      this.margins.ruler,
      this.margins.labels,
      this.margins.gutter,
      this.surface,
    );
    this.message = element("p", { class: "soft" }, "Asking for the layers…");
    this.column = element(
      "select",
      {
        "aria-label": "Column",
        onchange: () =>
          this.page.go({ column: this.column.value === "l2" ? "" : this.column.value }),
      },
      [...COLUMNS].map(([name, text]) => element("option", { value: name }, text)),
    );
    this.views = ["change", "size"].map((view) =>
      button(view, () => this.page.go({ view: view === "size" ? "size" : "" })),
    );
    this.folding = button("By module", () => this.toggleFold(), {
      title: "One row for each module (f)",
    });
    this.tabling = button("As table", () => this.toggleTable(), {
      "aria-pressed": "false",
      title: "The worst layers as a table (t)",
    });
    this.note = element("span", { class: "soft small" });
    this.element = element(
      "section",
      { class: "panel", "aria-label": "Layers and steps" },
      element(
        "div",
        { class: "head" },
        element("h2", {}, "Layers × steps"),
        this.column,
        element("span", { class: "segmented" }, this.views),
        this.folding,
        this.tabling,
        this.note,
      ),
      this.message,
      this.picture,
      this.readout,
      this.legend,
      this.table,
    );
    this.listen();
  }

  get state() {
    return this.page.state;
  }

  get view() {
    return this.state.view === "size" ? "size" : "change";
  }

  get folded() {
    return this.state.fold === "1";
  }

  get open() {
    return new Set(this.state.open);
  }

  /** Show cells, with the alerts that lie in them. */
  show(cells, { alerts, order }) {
    this.cells = cells;
    this.alerts = alerts;
    this.order = order;
    this.draw();
  }

  draw() {
    const { cells } = this;
    if (!cells) return;
    const isEmpty = !cells.columns || !cells.rows;
    this.picture.hidden = this.readout.hidden = this.legend.hidden = isEmpty;
    this.message.hidden = !isEmpty;
    if (isEmpty) return setText(this.message, "No step in this range has a record of a layer.");
    this.rows = rowsOf(cells.names, { fold: this.folded, open: this.open });
    this.column.value = this.state.column ?? "l2";
    this.views.forEach((each) =>
      each.setAttribute("aria-pressed", String(each.textContent === this.view)),
    );
    this.folding.setAttribute("aria-pressed", String(this.folded));
    setText(
      this.note,
      `${count(cells.rows, "layer")}, ${this.order === "executed" ? "in order of execution" : "as registered"}${cells.width > 1 ? ` · ${whole(cells.width)} steps in a column, the worst shown` : ""}`,
    );
    this.drawPicture();
    const { rows, alerts, folded, height, width } = this;
    this.margins.draw({ cells, rows, alerts, folded, height, width });
    this.drawLegend();
    this.surface.setAttribute("aria-label", this.summary());
    this.restoreCursor();
    if (!this.table.hidden) this.drawTable();
  }

  drawPicture() {
    const ratio = window.devicePixelRatio || 1;
    const least = this.folded ? 14 : 1;
    const cell = Math.max(least, Math.min(18, Math.floor(MOST_HEIGHT / this.rows.length)));
    this.height = this.folded
      ? cell * this.rows.length
      : Math.max(64, Math.min(MOST_HEIGHT, cell * this.rows.length));
    // The surface is never changed from outside by a class: its height is that of its rows.
    this.surface.style.height = `${this.height + 2}px`;
    this.margins.resize(this.height);
    this.width = this.surface.clientWidth;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    if (!this.canvas.width) return;
    const colours = palette(this.view, themeInForce());
    const groups = this.rows.map((row) => row.layers);
    this.range = sizeRange(this.cells);
    const picture = pool(this.cells, groups, this.canvas.height, this.canvas.width);
    const context = this.canvas.getContext("2d");
    paint(
      context,
      picture,
      this.cells,
      colouring(this.cells, this.view, colours, this.range),
      colours,
      ratio,
    );
  }

  drawLegend() {
    fill(this.legend, legendOf(this.view, this.range, this.alerts.length > 0));
  }

  summary() {
    const bad = this.cells.badColumns();
    const steps = bad
      .slice(0, 3)
      .map((column) => whole(this.cells.steps[column]))
      .join(", ");
    const none = bad.length
      ? `${count(bad.length, "column")} with NaN or Inf: ${steps}${bad.length > 3 ? " and more" : ""}`
      : "nothing that is not finite";
    return `${count(this.cells.rows, "layer")}, ${count(this.cells.columns, "step")}; ${none}. Arrow keys move, n goes to the next fault.`;
  }

  // Choosing

  listen() {
    const { surface } = this;
    let from = null;
    surface.addEventListener("pointermove", (event) => {
      const at = this.cellAt(event);
      if (!at) return;
      if (from) this.drawDrag(from.x, event.clientX);
      else this.moveTo(at, { quiet: true });
    });
    surface.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.pointerType !== "touch")
        from = { x: event.clientX, at: this.cellAt(event) };
    });
    surface.addEventListener("pointerup", (event) => {
      const began = from;
      from = null;
      this.dragged.hidden = true;
      const at = this.cellAt(event);
      if (!at) return;
      if (began?.at && Math.abs(event.clientX - began.x) > 6)
        this.chooseRange(began.at.column, at.column);
      else {
        this.moveTo(at, { quiet: true });
        this.choose();
      }
    });
    surface.addEventListener("pointercancel", () => (from = null));
    surface.addEventListener("keydown", (event) => this.keydown(event));
    surface.addEventListener(
      "focus",
      () => this.cursor === null && this.cells?.columns && this.moveTo(this.start()),
    );
  }

  start() {
    const [bad] = this.cells.badColumns();
    return this.worstAt(bad ?? this.cells.columns - 1);
  }

  cellAt(event) {
    if (!this.cells?.columns) return null;
    const box = this.canvas.getBoundingClientRect();
    const part = (value, size, parts) =>
      Math.min(parts - 1, Math.max(0, Math.floor((value / size) * parts)));
    return {
      row: part(event.clientY - box.top, box.height, this.rows.length),
      column: part(event.clientX - box.left, box.width, this.cells.columns),
    };
  }

  drawDrag(one, other) {
    const box = this.canvas.getBoundingClientRect();
    const [left, right] = [Math.min(one, other), Math.max(one, other)].map((x) =>
      Math.min(box.width, Math.max(0, x - box.left)),
    );
    this.dragged.hidden = right - left < 6;
    this.dragged.style.left = `${left}px`;
    this.dragged.style.width = `${right - left}px`;
  }

  chooseRange(one, other) {
    const [first, last] = [Math.min(one, other), Math.max(one, other)];
    this.page.go({
      from: this.cells.steps[first],
      to: this.cells.steps[last] + this.cells.width - 1,
      last: undefined,
    });
  }

  /** Open the layer under the cursor, at its step. */
  choose() {
    if (!this.cursor) return;
    const { layer, column } = this.chosen();
    this.page.go({ layer: this.cells.names[layer], step: this.cells.steps[column] });
  }

  // The layer that a place stands for: of several the most urgent.
  chosen() {
    const { row, column } = this.cursor;
    return { layer: this.cells.worst(this.rows[row].layers, column), column };
  }

  moveTo(at, { quiet = false } = {}) {
    this.cursor = at;
    this.drawCross();
    const { layer, column } = this.chosen();
    this.readOut(layer, column);
    this.held = { name: this.cells.names[layer], step: this.cells.steps[column] };
    if (!quiet) describe(this.sentence(layer, column));
  }

  drawCross() {
    const { row, column } = this.cursor;
    const width = this.width / this.cells.columns;
    const height = this.height / this.rows.length;
    const grow = (size) => Math.max(size, 7);
    this.cross.hidden = false;
    this.cross.style.left = `${(column + 0.5) * width - grow(width) / 2}px`;
    this.cross.style.top = `${(row + 0.5) * height - grow(height) / 2}px`;
    this.cross.style.width = `${grow(width)}px`;
    this.cross.style.height = `${grow(height)}px`;
  }

  // The cursor stays on its layer and step while columns move below it.
  restoreCursor() {
    const { layer: name, step } = this.state;
    const chosen = JSON.stringify([name, step]);
    if (name && step !== undefined && chosen !== this.taken && this.cells.columnOf(step) >= 0) {
      this.held = { name, step: this.cells.steps[this.cells.columnOf(step)] };
      this.taken = chosen;
    }
    if (!this.held) return;
    const column = this.cells.columnOf(this.held.step);
    const layer = this.cells.names.indexOf(this.held.name);
    const row = this.rows.findIndex((each) => each.layers.includes(layer));
    if (column < 0 || row < 0) {
      this.cursor = this.held = null;
      this.cross.hidden = true;
      return;
    }
    this.cursor = { row, column };
    this.drawCross();
    this.readOut(layer, column);
  }

  parts(layer, column) {
    const { cells } = this;
    const code = cells.at(layer, column);
    const usual = valueOf(cells.baseline[layer]);
    const word = wordOf(code);
    const ratio = ratioOf(code, cells.baseline[layer]);
    const step = cells.steps[column];
    return {
      name: cells.names[layer],
      step:
        cells.width > 1
          ? `steps ${whole(step)}–${whole(step + cells.width - 1)}, the worst`
          : `step ${whole(step)}`,
      value: `${COLUMNS.get(this.state.column ?? "l2")} ${word ?? short(valueOf(code))}`,
      usual: usual === null ? "" : `usual ${short(usual)}`,
      ratio: ratio === null || (ratio < 1.5 && ratio > 1 / 1.5) ? "" : `${times(ratio)} usual`,
      bad: isBad(code) || code === SKIPPED,
    };
  }

  readOut(layer, column) {
    const { name, step, value, usual, ratio, bad } = this.parts(layer, column);
    fill(
      this.readout,
      element("b", {}, nameOf(name, 4096)),
      ` · ${step} · `,
      element("span", { class: bad ? "bad" : "" }, value),
      [usual, ratio].filter(Boolean).map((text) => ` · ${text}`),
    );
  }

  sentence(layer, column) {
    const { name, step, value, usual, ratio } = this.parts(layer, column);
    return [printable(name), step, value, usual, ratio].filter(Boolean).join(", ");
  }

  worstAt(column) {
    let row = 0;
    let most = -1;
    this.rows.forEach((each, at) => {
      const urgency = Math.max(
        ...each.layers.map((layer) => this.cells.urgency[column * this.cells.rows + layer]),
      );
      if (urgency > most && each.kind !== "head") [row, most] = [at, urgency];
    });
    return { row, column };
  }

  // Keys

  keydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.cells?.columns) return;
    const step = event.shiftKey ? 10 : 1;
    const { row, column } = this.cursor ?? this.start();
    const moves = {
      ArrowLeft: () => [row, column - step],
      ArrowRight: () => [row, column + step],
      ArrowUp: () => [row - step, column],
      ArrowDown: () => [row + step, column],
      Home: () => [row, 0],
      End: () => [row, this.cells.columns - 1],
      PageUp: () => [this.nextModule(row, -1), column],
      PageDown: () => [this.nextModule(row, 1), column],
    };
    if (moves[event.key]) {
      const [newRow, newColumn] = moves[event.key]();
      this.moveTo({
        row: clamp(newRow, this.rows.length),
        column: clamp(newColumn, this.cells.columns),
      });
    } else if (event.key === "Enter") this.choose();
    else return;
    event.preventDefault();
  }

  nextModule(row, direction) {
    let at = row;
    while (this.rows[at + direction] && this.rows[at].module === this.rows[row].module)
      at += direction;
    return at;
  }

  /** Act on a key of the page; tell whether it was one. */
  key(key) {
    if (!this.cells?.columns) return false;
    const acts = {
      n: () => this.nextFault(1),
      N: () => this.nextFault(-1),
      f: () => this.toggleFold(),
      v: () => this.page.go({ view: this.view === "size" ? "" : "size" }),
      t: () => this.toggleTable(),
      "+": () => this.zoom(0.5),
      w: () => this.zoom(0.5),
      "-": () => this.zoom(2),
      s: () => this.zoom(2),
      a: () => this.pan(-0.25),
      d: () => this.pan(0.25),
    };
    if (!acts[key]) return false;
    acts[key]();
    return true;
  }

  nextFault(direction) {
    const alerts = this.alerts
      .map((alert) => this.cells.columnOf(alert.origin?.step ?? alert.first_step))
      .filter((column) => column >= 0);
    const faults = [...new Set([...this.cells.badColumns(), ...alerts])].sort(
      (one, other) => one - other,
    );
    if (!faults.length) return describe("No NaN, no Inf and no alert in these steps.");
    const now = this.cursor?.column ?? (direction > 0 ? -1 : this.cells.columns);
    const next =
      direction > 0
        ? (faults.find((column) => column > now) ?? faults[0])
        : (faults.findLast((column) => column < now) ?? faults[faults.length - 1]);
    const alert = this.alerts.find(
      (each) => this.cells.columnOf(each.origin?.step ?? each.first_step) === next,
    );
    const layer = this.cells.names.indexOf(
      alert?.origin?.first_gradient ?? alert?.origin?.layer ?? "",
    );
    const row = this.rows.findIndex((each) => each.kind !== "head" && each.layers.includes(layer));
    this.surface.focus();
    this.moveTo(row >= 0 ? { row, column: next } : this.worstAt(next));
  }

  zoom(factor) {
    const { steps, width } = this.cells;
    const [first, last] = [steps[0], steps[steps.length - 1] + width - 1];
    const middle = this.held?.step ?? last;
    const half = Math.max(4, ((last - first) * factor) / 2);
    this.page.go({
      from: Math.max(0, Math.round(middle - half)),
      to: Math.round(middle + half),
      last: undefined,
    });
  }

  pan(part) {
    const { steps, width } = this.cells;
    const [first, last] = [steps[0], steps[steps.length - 1] + width - 1];
    const move = Math.max(-first, Math.round((last - first) * part));
    this.page.go({ from: first + move, to: last + move, last: undefined });
  }

  toggleFold() {
    this.page.go({ fold: this.folded ? "" : "1", open: [] });
  }

  toggleModule(module) {
    const open = this.open;
    if (!open.delete(module)) open.add(module);
    this.page.go({ fold: "1", open: [...open] });
  }

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tabling.setAttribute("aria-pressed", String(!this.table.hidden));
    if (!this.table.hidden) this.drawTable();
  }

  drawTable() {
    fill(this.table, worstTable(this.cells, this.page));
  }
}

function clamp(value, size) {
  return Math.min(size - 1, Math.max(0, value));
}
