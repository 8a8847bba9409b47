// From cells to pixels. Of cells that share a pixel the most urgent is drawn: none is ever hidden.

import { CLIP, FIRST, isBad, SKIPPED, valueOf, ZERO } from "./codes.js";
import { STEPS } from "./palette.js";

/**
 * Choose the cell that each place of a picture shows.
 *
 * @param {import("./cells.js").Cells} cells
 * @param {number[][]} groups the layers of each row
 * @param {number} rows most rows of the picture
 * @param {number} columns most columns of it
 * @returns {{rows: number, columns: number, cell: Int32Array}} indices into `cells.code`
 */
export function pool(cells, groups, rows, columns) {
  const height = Math.min(rows, groups.length);
  const width = Math.min(columns, cells.columns);
  const cell = new Int32Array(height * width).fill(-1);
  const best = new Int16Array(height * width).fill(-1);
  const place = new Int32Array(cells.rows).fill(-1);
  groups.forEach((layers, row) => {
    const at = Math.floor((row * height) / groups.length);
    for (const layer of layers) place[layer] = at;
  });
  // An open module's own row comes before the rows of its layers, and shows them too.
  const heads = groups
    .map((layers, row) => [row, layers])
    .filter(([, layers]) => layers.length > 1);
  for (let column = 0; column < cells.columns; column += 1) {
    const x = Math.floor((column * width) / cells.columns);
    const from = column * cells.rows;
    for (let layer = 0; layer < cells.rows; layer += 1) {
      if (place[layer] >= 0) put(place[layer] * width + x, from + layer);
    }
    for (const [row, layers] of heads) {
      const at = Math.floor((row * height) / groups.length) * width + x;
      for (const layer of layers) put(at, from + layer);
    }
  }
  return { rows: height, columns: width, cell };

  function put(at, index) {
    const urgency = cells.urgency[index];
    if (urgency > best[at]) {
      best[at] = urgency;
      cell[at] = index;
    }
  }
}

/**
 * Return the function from a cell's index to its colour.
 *
 * @param {import("./cells.js").Cells} cells
 * @param {"change"|"size"} view
 * @param {ReturnType<typeof import("./palette.js").palette>} colours
 * @param {[number, number]} range codes at the ends of the map, for sizes
 */
export function colouring(cells, view, colours, range) {
  const { map } = colours;
  const last = STEPS - 1;
  const size = (code) =>
    map[Math.round(last * Math.min(1, Math.max(0, (code - range[0]) / (range[1] - range[0]))))];
  const change = (code, usual, quiet) => {
    if (usual < FIRST) return map[last >> 1];
    const off = code - usual;
    if (Math.abs(off) <= quiet) return map[last >> 1];
    const part = (Math.min(Math.abs(off), CLIP) - quiet) / (CLIP - quiet);
    return map[Math.round((last / 2) * (1 + Math.sign(off) * (0.12 + 0.88 * part)))];
  };
  return (index) => {
    if (index < 0) return colours.paper;
    const code = cells.code[index];
    if (code >= FIRST)
      return view === "size"
        ? size(code)
        : change(code, cells.usual[index], cells.quiet[index % cells.rows]);
    if (isBad(code)) return colours.ink;
    if (code === ZERO) return colours.zero;
    if (code === 6) return map[0];
    if (code === 7) return map[last];
    return colours.paper;
  };
}

/** Return the codes between which sizes are spread: the 2nd and the 98th percentile. */
export function sizeRange(cells) {
  const finite = [];
  const every = Math.max(1, Math.floor(cells.code.length / 20000));
  for (let at = 0; at < cells.code.length; at += every)
    if (cells.code[at] >= FIRST) finite.push(cells.code[at]);
  if (!finite.length) return [FIRST, 65535];
  finite.sort((one, other) => one - other);
  const low = finite[Math.floor(0.02 * (finite.length - 1))];
  const high = finite[Math.ceil(0.98 * (finite.length - 1))];
  return [low, Math.max(high, low + 1)];
}

/** Return the values at the ends of a range of sizes. */
export function sizesOf([low, high]) {
  return [valueOf(low), valueOf(high)];
}

/**
 * Paint a pooled picture over all of a canvas.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {ReturnType<typeof pool>} picture
 * @param {import("./cells.js").Cells} cells
 * @param {(index: number) => number} colour
 * @param {ReturnType<typeof import("./palette.js").palette>} colours
 * @param {number} ratio pixels of the canvas for one of CSS
 */
export function paint(context, picture, cells, colour, colours, ratio) {
  const { width, height } = context.canvas;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const x = edges(picture.columns, width);
  const y = edges(picture.rows, height);
  const special = []; // places of cells without a magnitude: few, and all that is drawn over it
  for (let row = 0; row < picture.rows; row += 1) {
    const start = y[row] * width;
    for (let column = 0; column < picture.columns; column += 1) {
      const place = row * picture.columns + column;
      const index = picture.cell[place];
      const pixel = colour(index);
      const end = start + x[column + 1];
      for (let at = start + x[column]; at < end; at += 1) pixels[at] = pixel;
      if (index >= 0 && cells.code[index] < FIRST) special.push(place);
    }
    for (let line = y[row] + 1; line < y[row + 1]; line += 1)
      pixels.copyWithin(line * width, start, start + width);
  }
  context.putImageData(image, 0, 0);
  const kinds = { context, picture, cells, special, x, y, ratio };
  chequer(kinds, css(colours.ink));
  mark(kinds, colours);
}

function edges(parts, length) {
  return Uint32Array.from({ length: parts + 1 }, (_, part) => Math.round((part * length) / parts));
}

/** Return a packed pixel as a colour of CSS. */
export function css(pixel) {
  return `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
}

// Steps that a scaler skipped.
function chequer({ context, picture, cells, special, x, y, ratio }, colour) {
  context.fillStyle = colour;
  for (const place of special) {
    if (cells.code[picture.cell[place]] !== SKIPPED) continue;
    const column = place % picture.columns;
    const row = (place - column) / picture.columns;
    const [left, top, right, bottom] = [x[column], y[row], x[column + 1], y[row + 1]];
    const size = Math.max(1, Math.floor(Math.min(right - left, bottom - top) / 2), ratio);
    for (let down = top; down < bottom; down += size) {
      const first = left + (((down - top) / size) % 2) * size;
      for (let at = first; at < right; at += 2 * size)
        context.fillRect(at, down, Math.min(size, right - at), Math.min(size, bottom - down));
    }
  }
}

// Ink for what is not finite, 3 pixels at least, in a ring: bad cells below one another together.
function mark({ context, picture, cells, special, x, y, ratio }, colours) {
  const boxes = [];
  for (const column of new Set(special.map((place) => place % picture.columns))) {
    let begin = -1;
    for (let row = 0; row <= picture.rows; row += 1) {
      const index = row < picture.rows ? picture.cell[row * picture.columns + column] : -1;
      const bad = index >= 0 && isBad(cells.code[index]);
      if (bad && begin < 0) begin = row;
      if (!bad && begin >= 0) {
        boxes.push(grown(x[column], y[begin], x[column + 1], y[row], 3 * ratio));
        begin = -1;
      }
    }
  }
  for (const [colour, rim] of [
    [colours.ring, ratio],
    [colours.ink, 0],
  ]) {
    context.fillStyle = css(colour);
    for (const [left, top, width, height] of boxes)
      context.fillRect(left - rim, top - rim, width + 2 * rim, height + 2 * rim);
  }
}

function grown(left, top, right, bottom, least) {
  const width = Math.max(right - left, least);
  const height = Math.max(bottom - top, least);
  return [
    Math.round((left + right - width) / 2),
    Math.round((top + bottom - height) / 2),
    width,
    height,
  ];
}
