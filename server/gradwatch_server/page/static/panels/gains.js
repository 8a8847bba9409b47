// Gains of the gradient from block to block, as bars.

import { element, printable } from "../element.js";
import { numberOf, short, whole } from "../numbers.js";

/** Return what `/gains` says. */
export function gainsOf(answer) {
  if (!answer.transitions.length) {
    const how = element("code", {}, "attach(blocks=…)");
    return element("p", { class: "soft" }, "No gains: ", how, " watches them.");
  }
  const { summary } = answer;
  const { mean_gain, min_gain, max_gain, num_amplifying, num_damping } = summary;
  const parts = [
    `mean ${short(mean_gain)}, ${short(min_gain)} to ${short(max_gain)} at step ${whole(answer.step)}`,
    `${whole(num_amplifying)} amplifying, ${whole(num_damping)} damping`,
  ];
  return [element("p", { class: "soft" }, parts.join(" · ")), gainBars(answer.transitions)];
}

// Bars on a logarithmic scale, from a gain of one upward and downward.
function gainBars(transitions) {
  const width = 300;
  const height = 64;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const set = (node, values) =>
    Object.entries(values).forEach(([name, value]) => node.setAttribute(name, value));
  set(svg, {
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    class: "gains",
    width: "100%",
    height,
  });
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute(
    "aria-label",
    `Gains from ${printable(transitions[0].from)} on: ${transitions
      .map((each) => short(each.gain))
      .slice(0, 64)
      .join(", ")}`,
  );
  const one = width / transitions.length;
  transitions.forEach((each, at) => {
    const gain = numberOf(each.gain);
    if (gain === null) return;
    const isDrawn = Number.isFinite(gain) && gain > 0;
    const log = isDrawn ? Math.max(-2.5, Math.min(2.5, Math.log2(gain))) : 2.5;
    const bar = document.createElementNS(svg.namespaceURI, "rect");
    const size = Math.max(1.5, (Math.abs(log) * (height / 2 - 2)) / 2.5);
    set(bar, {
      x: at * one + 0.1 * one,
      width: 0.8 * one,
      y: log >= 0 ? height / 2 - size : height / 2,
      height: size,
      class: isDrawn && Math.abs(log) <= 1 ? "calm" : isDrawn ? "far" : "bad",
    });
    const title = document.createElementNS(svg.namespaceURI, "title");
    title.textContent = `${printable(each.from)} from ${printable(each.to)}: ${short(gain)}`;
    bar.append(title);
    svg.append(bar);
  });
  return svg;
}
