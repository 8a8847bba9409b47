// The key of a line: a piece of it, in its colour and its dashes.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 28;

/** The dashes of the lines of one chart, in their order: colour alone tells nobody apart. */
export const DASHES = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]];

/** Return the key of a line; `at` is its place among those of its chart. */
export function lineKey(at) {
  const svg = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "line");
  const set = (node, values) =>
    Object.entries(values).forEach(([name, value]) => node.setAttribute(name, value));
  set(svg, { width: WIDTH, height: 10, "aria-hidden": "true", class: `key-${at + 1}` });
  set(line, { x1: 0, x2: WIDTH, y1: 5, y2: 5, stroke: "currentColor", "stroke-width": 2 });
  if (DASHES[at]) line.setAttribute("stroke-dasharray", DASHES[at].join(" "));
  svg.append(line);
  return svg;
}
