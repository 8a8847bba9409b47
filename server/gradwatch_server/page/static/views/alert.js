// One alert: what, where, since when, whether it goes on, and what to do.

import { formatAddress } from "../address.js";
import { Chart } from "../charts/chart.js";
import { getJson } from "../data/api.js";
import { SeriesSource } from "../data/rundata.js";
import { button, element, fill, nameOf, printable } from "../element.js";
import { copyAddress } from "../keys.js";
import { about, facts, hints, layers, past, strip } from "../panels/alertfacts.js";
import { actionsOf, stateOf } from "../panels/alerts.js";
import { setIcon, statusOf } from "../status.js";
import { agoOf, clock } from "../time.js";

const AROUND = 32; // steps
const ICONS = { critical: "critical", warning: "degraded" };

/** @returns the view of one alert */
export function alertPage(page, state) {
  const body = element(
    "section.panel",
    { "aria-label": "Alert" },
    element("h1", "Alert"),
    element("p.soft", "Asking for it…"),
  );
  let found = null;
  let drawn = "";
  let curves = null;
  let rules = null;

  return {
    name: "alert",
    elements: [body],
    refresh,
    take: (alert) => alert.id === state.alert && draw({ ...found, ...alert }),
    redraw: () => curves?.redraw(),
    close: () => curves?.close(),
    title: () =>
      found
        ? `${found.state === "firing" ? "✖ " : ""}${found.rule} · ${printable(found.run).slice(0, 60)}`
        : "alert",
  };

  async function refresh() {
    try {
      rules ??= (await getJson("/rules")).rules;
      draw(await getJson(`/alerts/${encodeURIComponent(state.alert)}`));
    } catch (error) {
      if (error.status !== 404) throw error;
      drawn = "";
      fill(
        body,
        element(
          "h1",
          found ? "This alert is not there any more" : "There is no such alert, or not any more",
        ),
        element("p", printable(error.message)),
        element("p", element("a", { href: formatAddress({ run: state.run }) }, "To the run")),
      );
      return;
    }
    await curves.load();
  }

  function draw(alert) {
    const text = JSON.stringify(alert);
    if (text === drawn) return;
    drawn = text;
    found = alert;
    const { origin } = alert;
    const layer = origin.layer ?? origin.first_gradient;
    curves ??= new CurvesAround(alert.run, alert.attempt, origin.step, layer);
    setIcon(ICONS[alert.severity] ?? "unknown");
    const show = formatAddress({
      run: alert.run,
      attempt: alert.attempt,
      step: origin.step,
      layer: layer ?? alert.layers?.[0],
      from: Math.max(0, origin.step - AROUND),
      to: origin.step + AROUND,
    });
    fill(
      body,
      element(
        "div.row",
        element("h1", statusOf(alert.severity, `${alert.rule} · ${stateOf(alert)}`)),
        button("Copy link", () => copyAddress(), { class: "push" }),
      ),
      element("p.lead", printable(alert.message)),
      element(
        "p.soft",
        "run ",
        element("a", { href: formatAddress({ run: alert.run }) }, nameOf(alert.run)),
        ` · attempt ${alert.attempt} · `,
        agoOf(alert.updated_at),
        `, ${clock(alert.updated_at)}`,
      ),
      element(
        "p.row",
        actionsOf(alert, page),
        element("a", { href: show }, "See it in the picture, 32 steps around"),
      ),
      strip(alert),
      curves.element,
      facts(alert),
      hints(alert),
      about(rules?.find((rule) => rule.rule === alert.rule)),
      past(alert),
      layers(alert),
    );
  }
}

/** The curves around a step: of a layer, or of the norm of all, and of the loss. */
class CurvesAround {
  constructor(run, attempt, step, layer) {
    this.step = step;
    this.range = { from: Math.max(0, step - AROUND), to: step + AROUND };
    const wanted = [
      ...(layer ? [[layer, "l2", `L2 norm of ${printable(layer)}`]] : []),
      [undefined, "norm", "gradient norm"],
      [undefined, "loss", "loss"],
    ];
    this.curves = wanted.map(([name, column, title]) => ({
      name,
      column,
      chart: new Chart({ title, height: 130 }),
      source: new SeriesSource(run, attempt, {
        columns: [column],
        layers: name === undefined ? undefined : [name],
      }),
    }));
    const charts = this.curves.map(({ chart }) => chart.element);
    this.element = element("div.charts.two", charts);
  }

  async load() {
    await Promise.all(this.curves.map((each) => this.loadOne(each)));
  }

  async loadOne({ name, column, chart, source }) {
    try {
      const found = await source.load(this.range);
      const curve = found.of(column, name);
      chart.show({
        x: found.x,
        width: found.width,
        curves: curve ? [{ ...curve, style: 1 }] : [],
        range: [this.range.from, this.range.to],
        alerts: [{ step: this.step }],
      });
    } catch (error) {
      if (error.status !== 404 && error.status !== 422) throw error;
      chart.element.hidden = true; // those steps are not kept any more
    }
  }

  redraw() {
    this.curves.forEach(({ chart }) => chart.redraw());
  }

  close() {
    this.curves.forEach(({ chart }) => chart.close());
  }
}
