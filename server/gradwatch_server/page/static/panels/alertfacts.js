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
  const before = (origin.before ?? []).map((each) =>
    element("span", { title: `step ${whole(each.step)}` }, short(each.l2 ?? each.value)),
  );
  if (!before.length && origin.value === null) return null;
  const after = (
    origin.after?.length ? origin.after : [{ step: origin.step, l2: origin.value }]
  ).map((each) =>
    element(
      "span",
      {
        title: `step ${whole(each.step)}`,
        class:
          each.step === origin.step || !Number.isFinite(Number(each.l2 ?? each.value)) ? "bad" : "",
      },
      short(each.l2 ?? each.value),
    ),
  );
  return element(
    "div.panel",
    element("h2", `${VALUES[rule] ?? "L2 norm"}, the steps before and from the fault on`),
    element("p.steps", before, element("span.fault", { "aria-label": "the fault" }, "│"), after),
  );
}

/** Return what is known of it, each with its name. */
export function facts(alert) {
  const known = factsOf(alert).filter(([, value]) => value !== null && value !== "");
  return element(
    "dl.facts",
    known.map(([name, value]) => [element("dt", name), element("dd", value)]),
  );
}

function factsOf(alert) {
  const { origin } = alert;
  const isLiveness = alert.rule === "liveness"; // its step is the last one, which was good
  const ranks = origin.ranks?.length ? origin.ranks : origin.rank === null ? [] : [origin.rank];
  const last = (alert.spread ?? [])[(alert.spread ?? []).length - 1];
  const good = origin.last_good_step ?? alert.last_good_step ?? null;
  return [
    [isLiveness ? "last step" : "first bad step", whole(alert.first_step)],
    [isLiveness ? "of" : "first on", ranks.length ? `rank ${ranks.join(", ")}` : "rank not known"],
    ["place of the rank", origin.place ?? ""],
    ["batch", origin.batch ? nameOf(origin.batch, 4096) : ""],
    ["layer", origin.layer ? nameOf(origin.layer, 4096) : ""],
    [
      "gradient that was bad first",
      origin.first_gradient ? nameOf(origin.first_gradient, 4096) : "",
    ],
    ["module whose output was bad first", origin.module ? nameOf(origin.module, 4096) : ""],
    [
      "the loss then",
      origin.bad_loss ? "already not finite: it began in the loss or the forward pass" : "",
    ],
    [
      "limit",
      origin.threshold === null
        ? origin.kind === "nan" || origin.kind === "inf"
          ? "any NaN or Inf, at once"
          : ""
        : `${short(origin.threshold)}${isLiveness ? " s" : ""}`,
    ],
    ["usual", origin.usual === null ? "" : short(origin.usual)],
    [
      "last good step",
      good === null || isLiveness
        ? ""
        : `${whole(good)}: the checkpoint to go back to is of this step or before`,
    ],
    ["fired", alert.fired_at === null ? "" : agoOf(alert.fired_at)],
    [
      "goes on",
      alert.state === "resolved"
        ? `no, over at step ${whole(alert.resolved_step)}`
        : alert.last_step > alert.first_step
          ? `yes, last at step ${whole(alert.last_step)}`
          : isLiveness
            ? "yes"
            : "so far one step",
    ],
    [
      "spread",
      last
        ? `${count(alert.spread[0].num_layers, "layer")} → ${count(last.num_layers, "layer")} by step ${whole(last.step)}, ${count(last.num_ranks, "rank")}`
        : "",
    ],
    ["likely cause", printable(origin.cause ?? "")],
    ["seen besides", (origin.notes ?? []).map(printable).join("; ")],
    ["", printable(origin.detail ?? "")],
    [
      "acknowledged",
      alert.acknowledged
        ? [
            `${printable(alert.acknowledged.by)}, `,
            agoOf(alert.acknowledged.at),
            alert.acknowledged.comment ? `: ${printable(alert.acknowledged.comment)}` : "",
          ]
        : "",
    ],
  ];
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
export function layers(alert) {
  if (!alert.layers?.length) return null;
  const more = alert.num_layers - alert.layers.length;
  return element(
    "details",
    element("summary", count(alert.num_layers, "layer")),
    element(
      "ul",
      alert.layers.map((each) =>
        element(
          "li",
          element(
            "a",
            {
              href: formatAddress({
                run: alert.run,
                attempt: alert.attempt,
                layer: each.name ?? each,
                step: alert.origin.step,
              }),
            },
            nameOf(each.name ?? each, 4096),
          ),
        ),
      ),
      more > 0 ? element("li.soft", `and ${whole(more)} more`) : null,
    ),
  );
}
