// Layers × steps with its labels, ruler, readout and keys: where a fault is seen first.

import { isFollowing } from "../data/rundata.js";
import { button, element, fill, setText } from "../element.js";
import { count, whole } from "../numbers.js";
import { themeInForce } from "../theme.js";
import { COLUMNS } from "../words.js";
import { HeatCursor } from "./cursor.js";
import { HeatKeys } from "./keys.js";
import { legendOf } from "./legend.js";
import { Margins } from "./margins.js";
import { rowsOf } from "./names.js";
import { palette } from "./palette.js";
import { colouring, paint, pool, sizeRange } from "./picture.js";
import { HeatPointer } from "./pointer.js";
import { worstTable } from "./worst.js";

const [LEAST_HEIGHT, MOST_HEIGHT] = [260, 460]; // pixels, of a picture with many rows
const ABOVE = 540; // pixels of the page above the picture, and below it to the end of its legend
const VIEWS = ["change", "size"];
const LEAST_ROWS = 8;

/** The picture; `page.go` takes what is chosen in it. */
export class HeatPanel {
  constructor(page) {
    this.page = page;
    this.cells = null;
    this.alerts = [];
    this.order = "registered";
    this.firstRow = 0; // of all rows, the first that is shown
    this.mostRows = Infinity;
    this.cursor = new HeatCursor(this);
    this.pointer = new HeatPointer(this);
    this.keys = new HeatKeys(this);
    this.build();
  }

  build() {
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.surface = element(
      "div.surface",
      {
        tabindex: "0",
        role: "application",
        "aria-roledescription": "heatmap",
        "aria-label": "Layers and steps",
      },
      this.canvas,
      this.cursor.line,
      this.cursor.cross,
      this.pointer.dragged,
      this.cursor.readout,
    );
    this.margins = new Margins({
      module: (name) => this.toggleModule(name),
      layer: (name) => this.page.go({ layer: name }),
    });
    this.legend = element("div.row.legend");
    this.table = element("div", { hidden: true });
    this.picture = element(
      "div.heat",
      this.margins.ruler,
      this.margins.labels,
      this.margins.gutter,
      this.surface,
    );
    this.message = element("p.soft", "Asking for the layers…");
    this.buildControls();
    this.note = element("span.soft.small");
    this.element = element(
      "section.panel",
      { "aria-label": "Layers and steps" },
      element(
        "div.row.head",
        element("h2", "Layers × steps"),
        this.column,
        element("span.segmented", this.views),
        this.folding,
        this.unzooming,
        this.tabling,
        this.note,
      ),
      this.message,
      this.picture,
      this.legend,
      this.table,
    );
    this.pointer.listen(this.surface);
    this.surface.addEventListener("keydown", (event) => this.keys.pressed(event));
    this.surface.addEventListener("blur", () => this.cursor.leave());
    this.surface.addEventListener("focus", () => {
      if (this.cursor.place === null && this.cells?.columns) this.cursor.moveTo(this.start());
    });
  }

  buildControls() {
    this.column = element(
      "select",
      {
        "aria-label": "Column",
        onchange: () =>
          this.page.go({ column: this.column.value === "l2" ? "" : this.column.value }),
      },
      [...COLUMNS].map(([name, text]) => element("option", { value: name }, text)),
    );
    this.views = VIEWS.map((view) => button(view, () => this.look(view)));
    this.folding = button("By module", () => this.toggleFold(), {
      title: "One row for each module (f)",
    });
    this.unzooming = button("All rows", () => this.zoomRows(Infinity), { title: "(Z)" });
    this.tabling = button("As table", () => this.toggleTable(), {
      "aria-pressed": "false",
      title: "The worst layers as a table (t)",
    });
  }

  get state() {
    return this.page.state;
  }

  get view() {
    return VIEWS.includes(this.state.view) ? this.state.view : this.firstView;
  }

  // A layer that is too small or too large from its first step on has no usual norm, so no change.
  get firstView() {
    return this.alerts.some(isFromTheStart) ? "size" : "change";
  }

  /** Choose a view. */
  look(view) {
    this.page.go({ view: view === this.firstView ? "" : view });
  }

  get folded() {
    return this.state.fold === "1";
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
    this.picture.hidden = this.legend.hidden = isEmpty;
    this.message.hidden = !isEmpty;
    if (isEmpty) return setText(this.message, this.nothing());
    this.allRows = rowsOf(cells.names, { fold: this.folded, open: new Set(this.state.open) });
    this.cutRows();
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
    this.cursor.restore(this.state);
    if (!this.table.hidden) this.drawTable();
  }

  // Take the rows that are shown of all.
  cutRows() {
    const count = Math.min(this.mostRows, this.allRows.length);
    this.firstRow = Math.max(0, Math.min(this.firstRow, this.allRows.length - count));
    this.rows = this.allRows.slice(this.firstRow, this.firstRow + count);
    this.unzooming.hidden = count === this.allRows.length;
  }

  /** Show so many times as many rows, around that of the cursor. */
  zoomRows(factor) {
    const middle = this.firstRow + (this.cursor.place?.row ?? this.rows.length >> 1);
    const count = Math.max(LEAST_ROWS, Math.round(this.rows.length * factor));
    this.mostRows = count < this.allRows.length ? count : Infinity;
    this.showFrom(middle - (count >> 1));
  }

  showFrom(row) {
    this.firstRow = Number.isFinite(row) ? row : 0;
    this.draw();
  }

  /** Return the row of a layer, which is shown from then on; -1 where none has it. */
  rowOf(layer) {
    const row = this.allRows.findIndex(
      ({ kind, layers }) => kind !== "head" && layers.includes(layer),
    );
    const isShown = row >= this.firstRow && row < this.firstRow + this.rows.length;
    if (row >= 0 && !isShown) this.showFrom(row - (this.rows.length >> 1));
    return row < 0 ? row : row - this.firstRow;
  }

  drawPicture() {
    const ratio = window.devicePixelRatio || 1;
    const least = this.folded ? 14 : 1;
    const most = Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, window.innerHeight - ABOVE));
    const cell = Math.max(least, Math.min(18, Math.floor(most / this.rows.length)));
    this.height = this.folded
      ? cell * this.rows.length
      : Math.max(64, Math.min(most, cell * this.rows.length));
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
    const shown = [this.view, this.range, this.alerts.length > 0];
    const key = JSON.stringify([shown, themeInForce()]);
    if (key !== this.legend.dataset.key) fill(this.legend, legendOf(...shown));
    this.legend.dataset.key = key;
  }

  nothing() {
    return isFollowing(this.state)
      ? "No step of this run has come yet; the picture begins with the first one."
      : "No step in this range has a record of a layer.";
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

  /** Return where the cursor begins: at the first fault, else at the newest step. */
  start() {
    const [bad] = this.cells.badColumns();
    return this.worstAt(bad ?? this.cells.columns - 1);
  }

  /** Return the place of the layer that is most urgent in a column. */
  worstAt(column) {
    const { rows: size, urgency } = this.cells;
    let found = { row: 0, most: -1 };
    this.rows.forEach(({ kind, layers }, row) => {
      const most = Math.max(...layers.map((layer) => urgency[column * size + layer]));
      if (most > found.most && kind !== "head") found = { row, most };
    });
    return { row: found.row, column };
  }

  /** Show the steps of some columns. */
  chooseColumns(one, other) {
    const { steps, width } = this.cells;
    const [first, last] = [Math.min(one, other), Math.max(one, other)];
    this.page.go({ from: steps[first], to: steps[last] + width - 1, last: undefined });
  }

  /** Open the layer under the cursor, at its step. */
  choose() {
    if (!this.cursor.place) return;
    const { layer, column } = this.cursor.chosen();
    this.page.go({ layer: this.cells.names[layer], step: this.cells.steps[column] });
  }

  toggleFold() {
    this.page.go({ fold: this.folded ? "" : "1", open: [] });
  }

  toggleModule(module) {
    const open = new Set(this.state.open);
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

  close() {
    this.cursor.close();
  }
}

function isFromTheStart({ rule, severity, origin }) {
  return ["vanishing", "exploding"].includes(rule) && severity !== "info" && origin?.usual === null;
}
