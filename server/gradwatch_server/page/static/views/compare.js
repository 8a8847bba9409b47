// Runs or attempts over one another: curves by style as well as colour, pictures one above the other.

import { runAddress } from "../address.js";
import { Chart } from "../charts/chart.js";
import { DASHES, lineKey } from "../charts/linekey.js";
import { element, fill, nameOf, printable } from "../element.js";
import { getJson, runPath } from "../data/api.js";
import { HeatPanel } from "../heatmap/panel.js";
import { count } from "../numbers.js";
import { Panel } from "../panels/panel.js";
import { HeatSource, isFollowing, SeriesSource } from "../data/rundata.js";
import { statusOf } from "../status.js";
import { RUN_SERIES } from "../words.js";

const CHARTS = ["norm", "loss", "lr", "step_time"];

/** @returns the view of up to four sides */
export function comparePage(page, state) {
  const sides = (state.runs.length > 1 ? state.runs : state.attempts.map(() => state.runs[0])).map(
    (run, at) => sideOf(page, run, state.attempts[at], at),
  );
  const charts = CHARTS.map(
    (name) =>
      new Chart({
        title: RUN_SERIES.get(name),
        log: name === "norm" || name === "loss",
        height: 190,
        onRange: (from, to) => page.go({ from, to, last: undefined }),
      }),
  );
  const lines = new Panel(
    "Curves over steps",
    element(
      "div",
      { class: "charts two" },
      charts.map((chart) => chart.element),
    ),
  );
  const list = element("ul", { class: "row" });
  const joined = element("p", { class: "soft" });

  return {
    name: "compare",
    elements: [
      element("h1", {}, "Compare"),
      list,
      lines.element,
      joined,
      sides.map((side) => side.panel.element),
    ].flat(),
    refresh,
    show: () => (sides.forEach((side) => side.picture.draw()), page.schedule.mark()),
    redraw: () => (
      charts.forEach((chart) => chart.redraw()),
      sides.forEach((side) => side.picture.draw())
    ),
    close: () => [...charts, ...sides.map((side) => side.picture)].forEach((each) => each.close()),
    title: () =>
      `${sides.map((side) => printable(side.label)).join(" and ")} · gradwatch`.slice(0, 120),
    key: (name) => sides[0].picture.keys.key(name),
  };

  async function refresh() {
    await Promise.all(sides.map((side) => side.panel.run(() => side.look())));
    await Promise.all([
      lines.run(loadLines),
      ...sides.map((side) => side.panel.run(() => side.load(sharedRange()))),
    ]);
    fill(
      list,
      sides.map((side) =>
        element(
          "li",
          { class: "row" },
          lineKey(side.at),
          element(
            "a",
            {
              href: runAddress(side.run, {
                attempts: side.attempt === undefined ? [] : [side.attempt],
              }),
            },
            nameOf(side.label),
          ),
          side.health ? statusOf(side.health.status, side.health.phase) : null,
        ),
      ),
    );
    drawJoined();
  }

  // The newest steps that all sides have: beside one another only the same steps tell something.
  function sharedRange() {
    const { state: now } = page;
    if (!isFollowing(now)) return now;
    const steps = sides.map((side) => side.health?.step).filter((step) => typeof step === "number");
    if (!steps.length) return now;
    const to = Math.min(...steps);
    return { ...now, from: Math.max(0, to - (now.last ?? 512) + 1), to };
  }

  async function loadLines() {
    const shared = sharedRange();
    const found = await Promise.all(sides.map((side) => side.series.load(shared)));
    const range = [
      Math.min(...found.map((curves) => curves.range(shared)[0])),
      Math.max(...found.map((curves) => curves.range(shared)[1])),
    ];
    CHARTS.forEach((name, at) => charts[at].show({ ...joinCurves(found, name, sides), range }));
  }

  function drawJoined() {
    const names = sides.map((side) => side.cells?.names ?? []);
    if (!names.every((own) => own.length)) return;
    const both = names[0].filter((name) => names.every((own) => own.includes(name)));
    const only = names.map((own) => own.filter((name) => !both.includes(name)));
    fill(
      joined,
      `${count(both.length, "layer")} on every side`,
      only.map((own, at) =>
        own.length
          ? [
              ` · only in ${printable(sides[at].label)}: ${own.slice(0, 3).map(printable).join(", ")}${own.length > 3 ? ` and ${own.length - 3} more` : ""}`,
            ]
          : "",
      ),
    );
  }
}

function sideOf(page, run, attempt, at) {
  const picture = new HeatPanel(page);
  const source = new HeatSource(run, attempt);
  const label = attempt === undefined ? run : `${run} · attempt ${attempt}`;
  const side = {
    run,
    attempt,
    at,
    label,
    picture,
    series: new SeriesSource(run, attempt, { columns: CHARTS }),
    panel: new Panel(printable(label), picture.element),
    async look() {
      side.health = await getJson(runPath(run, "/health"), { attempt });
    },
    async load(state) {
      side.cells = await source.load(state);
      picture.show(side.cells, { alerts: side.health.alerts.items, order: "registered" });
    },
  };
  return side;
}

// Sides have steps, and widths of buckets, of their own: every step that one of them has is there.
function joinCurves(found, name, sides) {
  const x = [...new Set(found.flatMap((curves) => Array.from(curves.x)))].sort(
    (one, other) => one - other,
  );
  const place = new Map(x.map((step, at) => [step, at]));
  const width = Math.max(...found.map((curves) => curves.width));
  const curves = found.flatMap((own, at) => {
    const curve = own.of(name);
    if (!curve) return [];
    const spread = (values) => {
      const made = new Float64Array(x.length).fill(NaN);
      values?.forEach((value, index) => (made[place.get(own.x[index])] = value));
      return made;
    };
    const bad = spread(curve.bad).map((value) => value || 0);
    return [
      {
        label: printable(sides[at].label),
        last: spread(curve.last),
        min: spread(curve.min),
        max: spread(curve.max),
        bad,
        style: at + 1,
        dash: DASHES[at],
      },
    ];
  });
  return { x, width, curves };
}
