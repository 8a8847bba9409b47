// One alert: what, where, since when, whether it goes on, and what to do.

import { formatAddress } from "../address.js";
import { actionsOf, stateOf } from "../panels/alerts.js";
import { getJson } from "../data/api.js";
import { Chart } from "../charts/chart.js";
import { button, element, fill, nameOf, printable } from "../element.js";
import { setIcon } from "../icon.js";
import { copyAddress } from "../keys.js";
import { count, short, whole } from "../numbers.js";
import { SeriesSource } from "../data/rundata.js";
import { severityOf } from "../status.js";
import { ago, clock } from "../time.js";

const AROUND = 32; // steps

/** @returns the view of one alert */
export function alertPage(page, state) {
  const body = element(
    "section",
    { class: "panel", "aria-label": "Alert" },
    element("h1", {}, "Alert"),
    element("p", { class: "soft" }, "Asking for it…"),
  );
  let found = null;
  let drawn = "";
  let charts = [];

  return {
    name: "alert",
    elements: [body],
    refresh,
    take: (name, data) =>
      name === "alert" && data.id === state.alert && draw({ ...found, ...data }),
    redraw: () => charts.forEach((chart) => chart.redraw()),
    title: () =>
      found
        ? `${found.state === "firing" ? "✖ " : ""}${found.rule} · ${printable(found.run).slice(0, 60)}`
        : "alert",
  };

  async function refresh() {
    try {
      draw(await getJson(`/alerts/${encodeURIComponent(state.alert)}`));
    } catch (error) {
      if (error.status !== 404) throw error;
      fill(
        body,
        element("h1", {}, "This alert is not there any more"),
        element("p", {}, error.message),
        element("p", {}, element("a", { href: formatAddress({ runs: state.runs }) }, "To the run")),
      );
    }
  }

  function draw(alert) {
    const text = JSON.stringify(alert);
    if (text === drawn) return;
    drawn = text;
    found = alert;
    setIcon({ critical: "critical", warning: "degraded" }[alert.severity] ?? "unknown");
    const { origin } = alert;
    const layer = origin.layer ?? origin.first_gradient;
    const show = formatAddress({
      runs: [alert.run],
      attempts: [alert.attempt],
      step: origin.step,
      layer: layer ?? alert.layers?.[0],
      from: Math.max(0, origin.step - AROUND),
      to: origin.step + AROUND,
    });
    fill(
      body,
      element(
        "div",
        { class: "row" },
        element("h1", {}, severityOf(alert.severity, `${alert.rule} · ${stateOf(alert)}`)),
        button("Copy link", () => copyAddress(), { class: "push" }),
      ),
      element("p", { class: "lead" }, printable(alert.message)),
      element(
        "p",
        { class: "soft" },
        "run ",
        element("a", { href: formatAddress({ runs: [alert.run] }) }, nameOf(alert.run)),
        ` · attempt ${alert.attempt} · ${ago(alert.updated_at)}, ${clock(alert.updated_at)}`,
      ),
      element(
        "p",
        { class: "row" },
        alert.state === "firing" ? actionsOf(alert, page) : null,
        element("a", { href: show }, "See it in the picture, 32 steps around"),
      ),
      strip(alert),
      curves(alert, layer),
      element(
        "dl",
        { class: "facts" },
        factsOf(alert)
          .filter(([, value]) => value !== null && value !== "")
          .map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
      ),
      hints(alert),
      past(alert),
      layers(alert),
    );
  }

  // The layer, or the norm of all, and the loss around the step.
  function curves(alert, layer) {
    const { step } = alert.origin;
    const place = element("div", { class: "charts two" });
    const range = { from: Math.max(0, step - AROUND), to: step + AROUND };
    const wanted = [
      [layer ?? null, "l2", layer ? `L2 norm of ${printable(layer)}` : null],
      [null, "norm", "gradient norm"],
      [null, "loss", "loss"],
    ].filter(([, , title]) => title);
    charts = wanted.map(([, , title]) => new Chart({ title, height: 130 }));
    fill(
      place,
      charts.map((chart) => chart.element),
    );
    wanted.forEach(async ([name, column], at) => {
      try {
        const source = new SeriesSource(alert.run, alert.attempt, {
          columns: [column],
          layers: name === null ? undefined : [name],
        });
        const found = await source.load(range);
        const curve = found.of(column, name ?? undefined);
        await charts[at].show({
          x: found.x,
          width: found.width,
          curves: curve ? [{ ...curve, style: 1 }] : [],
          range: [range.from, range.to],
          alerts: [{ step }],
        });
      } catch {
        charts[at].element.remove(); // those steps are not kept any more
      }
    });
    return place;
  }
}

function strip({ origin }) {
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
    "div",
    { class: "panel" },
    element("h2", {}, "L2 norm, the steps before and from the fault on"),
    element(
      "p",
      { class: "steps" },
      before,
      element("span", { class: "fault", "aria-label": "the fault" }, "│"),
      after,
    ),
  );
}

function factsOf(alert) {
  const { origin } = alert;
  const ranks = origin.ranks?.length ? origin.ranks : origin.rank === null ? [] : [origin.rank];
  const last = (alert.spread ?? [])[(alert.spread ?? []).length - 1];
  const good = origin.last_good_step ?? alert.last_good_step ?? null;
  return [
    ["first bad step", whole(alert.first_step)],
    ["first on", ranks.length ? `rank ${ranks.join(", ")}` : "rank not known"],
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
        : short(origin.threshold),
    ],
    ["usual", origin.usual === null ? "" : short(origin.usual)],
    [
      "last good step",
      good === null ? "" : `${whole(good)}: the checkpoint to go back to is of this step or before`,
    ],
    [
      "goes on",
      alert.state === "resolved"
        ? `no, over at step ${whole(alert.resolved_step)}`
        : alert.last_step > alert.first_step
          ? `yes, last at step ${whole(alert.last_step)}`
          : "so far one step",
    ],
    [
      "spread",
      last
        ? `${count(alert.spread[0].num_layers, "layer")} → ${count(last.num_layers, "layer")} by step ${whole(last.step)}, ${count(last.num_ranks, "rank")}`
        : "",
    ],
    ["seen besides", (origin.notes ?? []).map(printable).join("; ")],
    ["", printable(origin.detail ?? "")],
    [
      "acknowledged",
      alert.acknowledged
        ? `${printable(alert.acknowledged.by)}, ${ago(alert.acknowledged.at)}${alert.acknowledged.comment ? `: ${printable(alert.acknowledged.comment)}` : ""}`
        : "",
    ],
  ];
}

function past({ events }) {
  if (!events?.length) return null;
  const item = (event) =>
    element(
      "li",
      {},
      element("span", { class: "soft" }, `${clock(event.updated_at)} · ${event.state} · `),
      printable(event.message),
    );
  return element(
    "details",
    {},
    element("summary", {}, `History: ${count(events.length, "event")}`),
    element("ol", {}, events.map(item)),
  );
}

function hints({ hints: given }) {
  if (!given?.length) return null;
  return element(
    "div",
    { class: "panel" },
    element("h2", {}, "Often behind it (heuristic)"),
    element(
      "ul",
      {},
      given.map((hint) => element("li", {}, printable(hint))),
    ),
  );
}

function layers(alert) {
  if (!alert.layers?.length) return null;
  const more = alert.num_layers - alert.layers.length;
  return element(
    "details",
    {},
    element("summary", {}, count(alert.num_layers, "layer")),
    element(
      "ul",
      {},
      alert.layers.map((each) =>
        element(
          "li",
          {},
          element(
            "a",
            {
              href: formatAddress({
                runs: [alert.run],
                attempts: [alert.attempt],
                layer: each.name ?? each,
                step: alert.origin.step,
              }),
            },
            nameOf(each.name ?? each, 4096),
          ),
        ),
      ),
      more > 0 ? element("li", { class: "soft" }, `and ${whole(more)} more`) : null,
    ),
  );
}
