// The mouse or a finger over the picture: one cell is read out, a click opens it, a drag chooses steps.

import { element } from "../element.js";

const LEAST_DRAG = 6; // pixels

/** What a pointer does on the surface of a picture. */
export class HeatPointer {
  /** @param {import("./panel.js").HeatPanel} panel */
  constructor(panel) {
    this.panel = panel;
    this.began = null; // where it was pressed
    this.dragged = element("div.drag", { hidden: true });
  }

  /** Listen to a surface. */
  listen(surface) {
    surface.addEventListener("pointermove", (event) => this.move(event));
    surface.addEventListener("pointerdown", (event) => this.press(event, surface));
    surface.addEventListener("pointerup", (event) => this.release(event));
    surface.addEventListener("pointercancel", () => this.end());
    surface.addEventListener("pointerleave", () => this.panel.cursor.leave());
  }

  move(event) {
    const at = this.cellAt(event);
    if (!at) return;
    if (this.began && event.pointerType !== "touch") this.drawDrag(event.clientX);
    else this.panel.cursor.moveTo(at, { quiet: true });
  }

  press(event, surface) {
    const at = this.cellAt(event);
    if (event.button !== 0 || !at) return;
    this.began = { x: event.clientX, at };
    // A drag may end beside the picture. A finger scrolls: it keeps nothing to itself.
    if (event.pointerType !== "touch") surface.setPointerCapture(event.pointerId);
  }

  release(event) {
    const { began, panel } = this;
    const at = this.cellAt(event);
    this.end();
    if (!began || !at) return; // it was pressed elsewhere, or with another button
    const isDrag = Math.abs(event.clientX - began.x) > LEAST_DRAG && event.pointerType !== "touch";
    if (isDrag) return panel.chooseColumns(began.at.column, at.column);
    panel.cursor.moveTo(at, { quiet: true });
    panel.choose();
  }

  end() {
    this.began = null;
    this.dragged.hidden = true;
  }

  cellAt(event) {
    const { cells, rows, canvas } = this.panel;
    if (!cells?.columns) return null;
    const box = canvas.getBoundingClientRect();
    const part = (value, size, parts) =>
      Math.min(parts - 1, Math.max(0, Math.floor((value / size) * parts)));
    return {
      row: part(event.clientY - box.top, box.height, rows.length),
      column: part(event.clientX - box.left, box.width, cells.columns),
    };
  }

  drawDrag(x) {
    const box = this.panel.canvas.getBoundingClientRect();
    const [left, right] = [this.began.x, x]
      .sort((one, other) => one - other)
      .map((at) => Math.min(box.width, Math.max(0, at - box.left)));
    this.dragged.hidden = right - left < LEAST_DRAG;
    this.dragged.style.left = `${left}px`;
    this.dragged.style.width = `${right - left}px`;
  }
}
