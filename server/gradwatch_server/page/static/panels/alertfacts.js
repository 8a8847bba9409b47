// What is known of one alert: the values around it, the facts, hints, its events and its layers.

import { formatAddress } from "../address.js";
import { element, nameOf, printable } from "../element.js";
import { count, short, whole } from "../numbers.js";
import { agoOf, clock } from "../time.js";

/** Rules whose values are no L2 norms, to the name of these. */
const VALUES = {
  gain: "Gain",
  groups: "Ratio",
  loss: "Loss",
  loss_scaler: "Loss scale",
  slow: "Seconds of a step",
};

/** Rules about the run or its ranks, whose value is a count or a time. */
const WITHOUT_VALUES = new Set(["liveness", "records_lost", "not_learning", "not_zeroed"]);

/** Return the values before and from the fault on. */
export function strip({ origin, rule }) {
  if (WITHOUT_VALUES.has(rule)) return null;
  const { before = [], after, step: begin, value } = origin;
  if (!before.length && value === null) return null;
  const cell = (tag, { step, l2, value: other }) =>
    element(tag, { title: `step ${whole(step)}` }, short(l2 ?? other));
  const isBad = ({ step, l2, value: other }) =>
    step === begin || !Number.isFinite(Number(l2 ?? other));
  const later = after?.length ? after : [{ step: begin, l2: value }];
  return element(
    "div.panel",
    element("h2", `${VALUES[rule] ?? "L2 norm"}, the steps before and from the fault on`),
    element(
      "p.steps",
      before.map((each) => cell("span", each)),
      element("span.fault", { "aria-label": "the fault" }, "│"),
      later.map((each) => cell(isBad(each) ? "span.bad" : "span", each)),
    ),
  );
}

/** Return what is known of it, each with its name. */
export function facts(alert) {
  const known = factsOf(alert).filter(([, value]) => value);
  return element(
    "dl.facts",
    known.map(([name, value]) => [element("dt", name), element("dd", value)]),
  );
}

function factsOf(alert) {
  const { origin, acknowledged: known } = alert;
  const isLiveness = alert.rule === "liveness"; // its step is the last one, which was good
  const ranks = origin.ranks?.length ? origin.ranks : origin.rank === null ? [] : [origin.rank];
  const good = isLiveness ? null : (origin.last_good_step ?? alert.last_good_step ?? null);
  const name = (given) => given && nameOf(given, 4096);
  return [
    [isLiveness ? "last step" : "first bad step", whole(alert.first_step)],
    [isLiveness ? "of" : "first on", ranks.length ? `rank ${ranks.join(", ")}` : "rank not known"],
    ["place of the rank", origin.place],
    ["batch", name(origin.batch)],
    ["layer", name(origin.layer)],
    ["gradient that was bad first", name(origin.first_gradient)],
    ["module whose output was bad first", name(origin.module)],
    [
      "the loss then",
      origin.bad_loss && "already not finite: it began in the loss or the forward pass",
    ],
    ["limit", limitOf(origin, isLiveness ? " s" : "")],
    ["usual", origin.usual !== null && short(origin.usual)],
    [
      "last good step",
      good !== null && `${whole(good)}: the checkpoint to go back to is of this step or before`,
    ],
    ["fired", alert.fired_at && agoOf(alert.fired_at)],
    ["goes on", lastingOf(alert, isLiveness)],
    ["spread", spreadOf(alert.spread)],
    ["likely cause", printable(origin.cause ?? "")],
    ["seen besides", (origin.notes ?? []).map(printable).join("; ")],
    ["", printable(origin.detail ?? "")],
    [
      "acknowledged",
      known && [
        `${printable(known.by)}, `,
        agoOf(known.at),
        known.comment && `: ${printable(known.comment)}`,
      ],
    ],
  ];
}

function limitOf({ threshold, kind }, unit) {
  if (threshold !== null) return short(threshold) + unit;
  return ["nan", "inf"].includes(kind) && "any NaN or Inf, at once";
}

function lastingOf({ state, first_step: first, last_step: last, resolved_step: end }, isLiveness) {
  if (state === "resolved") return `no, over at step ${whole(end)}`;
  if (last > first) return `yes, last at step ${whole(last)}`;
  return isLiveness ? "yes" : "so far one step";
}

function spreadOf(spread) {
  if (!spread?.length) return "";
  const [first, last] = [spread[0], spread[spread.length - 1]];
  const layers = `${count(first.num_layers, "layer")} → ${count(last.num_layers, "layer")}`;
  return `${layers} by step ${whole(last.step)}, ${count(last.num_ranks, "rank")}`;
}

/** Return its events. */
export function past({ events }) {
  if (!events?.length) return null;
  const item = (event) =>
    element(
      "li",
      element("span.soft", `${clock(event.updated_at)} · ${event.state} · `),
      printable(event.message),
    );
  return element(
    "details",
    element("summary", `History: ${count(events.length, "event")}`),
    element("ol", events.map(item)),
  );
}

/** Return what is often behind alerts of its rule. */
export function hints({ hints: given }) {
  if (!given?.length) return null;
  return element(
    "div.panel",
    element("h2", "Often behind it (heuristic)"),
    element(
      "ul",
      given.map((hint) => element("li", printable(hint))),
    ),
  );
}

/** Return what its rule goes by, and how that is tuned. */
export function about(rule) {
  if (!rule) return null;
  const said = [
    ["Raised when", rule.raised_when],
    ["If it says too much", rule.to_tune_it],
  ];
  return element(
    "details",
    element("summary", `The rule ${rule.rule}: `, printable(rule.summary)),
    said.map(([label, text]) => element("p", element("b", `${label}: `), printable(text))),
    element("p", element("a", { href: "/?page=rules" }, "All rules and their settings")),
  );
}

/** Return its layers, each a link to its curves at that step. */
export function layers({ run, attempt, origin, layers: named, num_layers: total }) {
  if (!named?.length) return null;
  const linkTo = (layer) =>
    element(
      "a",
      { href: formatAddress({ run, attempt, layer, step: origin.step }) },
      nameOf(layer, 4096),
    );
  const more = total - named.length;
  return element(
    "details",
    element("summary", count(total, "layer")),
    element(
      "ul",
      named.map((each) => element("li", linkTo(each))),
      more > 0 && element("li.soft", `and ${whole(more)} more`),
    ),
  );
}
