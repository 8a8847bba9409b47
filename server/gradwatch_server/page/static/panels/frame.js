// One step as it was: of all layers or of one, and what each rank had.

import { button, element, nameOf, table } from "../element.js";
import { count, exact, short, times, whole } from "../numbers.js";

/** Return the step in one sentence. */
export function frameSentence(frame) {
  const parts = [
    `norm ${short(frame.norm)}`,
    frame.loss === null ? "" : `loss ${short(frame.loss)}`,
    frame.lr === null ? "" : `learning rate ${short(frame.lr)}`,
    frame.skipped ? "step skipped by the scaler" : "",
    frame.num_nonfinite
      ? `${whole(frame.num_nonfinite)} of ${count(frame.num_layers, "layer")} not finite`
      : "every layer finite",
  ];
  return `At step ${whole(frame.step)}: ${parts.filter(Boolean).join(" · ")}`;
}

/**
 * Return its numbers.
 *
 * @param {any} frame as `/frames` gives it
 * @param {string|null} layer the one that was asked for; null for the worst ones
 */
export function frameNumbers(frame, layer, page) {
  const [own] = frame.layers;
  return [
    layer && own ? ownNumbers(own) : worstLayers(frame, page),
    rankTable(frame, layer && own),
  ];
}

function ownNumbers(own) {
  const ratio = own.usual === null || typeof own.l2 !== "number" ? null : own.l2 / own.usual;
  const facts = [
    ["L2 norm", own.l2, ratio === null ? "" : `usual ${short(own.usual)}, ${times(ratio)}`],
    ["largest magnitude", own.linf, ""],
    ["zeros", own.zeros, ""],
    ["NaN elements", own.nans, ""],
    ["Inf elements", own.infs, ""],
    ...(own.update_rms === null ? [] : updateFacts(own)),
  ];
  const isCount = (name) => name.includes("elements") || name === "zeros";
  return element(
    "dl.facts",
    facts
      .filter(([, value]) => value !== undefined)
      .map(([name, value, more]) => [
        element("dt", name),
        element(
          "dd",
          { title: exact(value) },
          value === null ? "not measured" : isCount(name) ? whole(value) : short(value),
          more ? element("span.soft", ` ${more}`) : null,
        ),
      ]),
  );
}

// One step in some has them.
function updateFacts({ update_rms: update, weight_rms: weight, unchanged }) {
  return [
    ["size of the update (rms)", update, weight ? `${short(update / weight)} of the weight's` : ""],
    ["size of the weight (rms)", weight, ""],
    ["share of unchanged weights", unchanged, ""],
  ];
}

function worstLayers(frame, page) {
  return table(
    `The ${count(frame.layers.length, "layer")} farthest from usual`,
    ["layer", "L2 norm", "usual", "largest", "NaN", "Inf"],
    frame.layers.map(({ name, l2, usual, linf, nans, infs }) => [
      button(nameOf(name, 80), () => page.go({ layer: name }), { class: "plain" }),
      ...[l2, usual, linf].map(short),
      whole(nans),
      whole(infs),
    ]),
  );
}

// What each rank had at the step. Its own gradient, from before the all-reduce, tells ranks apart.
function rankTable(frame, own) {
  const ranks = frame.ranks ?? [];
  if (!ranks.length) return null;
  const parts = ranks.map((rank) => own?.ranks?.find((each) => each.rank === rank.rank) ?? {});
  const hasLocal = parts.some((part) => (part.local_l2 ?? null) !== null);
  const local = hasLocal ? ["its own, before the all-reduce"] : [];
  return table(
    "Each rank at this step",
    ["rank", "L2 norm", ...local, "loss", "s/step", ""],
    ranks.map((rank, at) => [
      `rank ${rank.rank}`,
      short(own ? parts[at].l2 : rank.norm),
      ...(hasLocal ? [short(parts[at].local_l2)] : []),
      short(rank.loss),
      short(rank.step_time_s),
      rank.late ? "late" : "",
    ]),
  );
}
