// One layer at one step: its own curves, what it was then, and what each rank had.

import { Chart } from "../charts/chart.js";
import { button, element, fill, nameOf } from "../element.js";
import { count, exact, short, times, whole } from "../numbers.js";
import { isFollowing, loadFrame, SeriesSource } from "../data/rundata.js";
import { COLUMNS } from "../words.js";

const CURVES = ["l2", "linf", "mean_abs"];

/** The panel below the picture; hidden while no layer is chosen. */
export class LayerPanel {
  constructor(page, run, attempt) {
    this.page = page;
    this.run = run;
    this.attempt = attempt;
    this.layer = null;
    this.step = undefined;
    this.source = null;
    this.heading = element("h2");
    this.facts = element("p", { class: "soft" });
    this.charts = CURVES.map(
      (name) =>
        new Chart({
          title: COLUMNS.get(name),
          onRange: (from, to) => page.go({ from, to, last: undefined }),
        }),
    );
    this.frame = element("div");
    this.element = element(
      "section",
      { class: "panel drawer", hidden: true, "aria-label": "Layer" },
      element(
        "div",
        { class: "head" },
        this.heading,
        button("Close", () => page.go({ layer: "", step: undefined }), {
          class: "push",
          title: "Close (Esc)",
        }),
      ),
      this.facts,
      element(
        "div",
        { class: "charts" },
        this.charts.map((chart) => chart.element),
      ),
      this.frame,
    );
  }

  /** Show the layer and step of a state. */
  async load(state, { alerts }) {
    this.alerts = alerts;
    const { layer, step } = state;
    const isOpen = Boolean(layer) || step !== undefined;
    const isNew = isOpen && (layer !== this.layer || step !== this.step);
    this.element.hidden = !isOpen;
    if (!isOpen) {
      this.layer = null;
      this.step = undefined;
      return;
    }
    if (isNew) this.begin(layer ?? null, step);
    await Promise.all(
      [this.loadCurves(state, isNew), this.loadFrame(isNew)].map((work) =>
        work.catch((error) => this.fail(error)),
      ),
    );
  }

  begin(layer, step) {
    this.layer = layer;
    this.step = step;
    this.source = layer
      ? new SeriesSource(this.run, this.attempt, { columns: CURVES, layers: [layer] })
      : null;
    fill(
      this.heading,
      layer ? nameOf(layer, 4096) : "All ranks and the worst layers",
      step === undefined ? "" : ` · step ${whole(step)}`,
    );
    fill(this.facts);
    fill(this.frame);
    requestAnimationFrame(() => this.element.scrollIntoView({ block: "nearest" }));
  }

  fail(error) {
    if (error.isGone) throw error;
    fill(this.facts, element("span", { class: "failed" }, error.message));
  }

  async loadCurves(state, isNew) {
    if (!this.layer) this.charts.forEach((chart) => (chart.element.hidden = true));
    if (
      !this.layer ||
      (!isNew && !isFollowing(state) && this.key === JSON.stringify([state.from, state.to]))
    )
      return;
    this.key = JSON.stringify([state.from, state.to]);
    const layer = this.layer;
    const curves = await this.source.load(state);
    if (layer !== this.layer) return;
    CURVES.forEach((name, at) => {
      const curve = curves.of(name, layer);
      this.charts[at].element.hidden =
        !curve || !curve.last.some((value, place) => !Number.isNaN(value) || curve.bad?.[place]);
      this.charts[at].show({
        x: curves.x,
        width: curves.width,
        curves: curve ? [{ ...curve, style: 1 }] : [],
        range: curves.range(state),
        alerts: this.alerts.map((alert) => ({ step: alert.origin?.step ?? alert.first_step })),
      });
    });
  }

  async loadFrame(isNew) {
    if (this.step === undefined || !isNew) return;
    const { layer, step } = this;
    const frame = await loadFrame(this.run, this.attempt, step, layer ? [layer] : undefined);
    if (layer !== this.layer || step !== this.step) return;
    this.drawFrame(frame);
  }

  drawFrame(frame) {
    const parts = [
      `norm ${short(frame.norm)}`,
      frame.loss === null ? "" : `loss ${short(frame.loss)}`,
      frame.lr === null ? "" : `learning rate ${short(frame.lr)}`,
      frame.skipped ? "step skipped by the scaler" : "",
      frame.num_nonfinite
        ? `${whole(frame.num_nonfinite)} of ${count(frame.num_layers, "layer")} not finite`
        : "every layer finite",
    ];
    fill(this.facts, `At step ${whole(frame.step)}: ${parts.filter(Boolean).join(" · ")}`);
    const [own] = frame.layers;
    fill(
      this.frame,
      this.layer && own ? this.drawOwn(own) : this.drawWorst(frame),
      rankTable(frame, own),
    );
  }

  drawOwn(own) {
    const ratio = own.usual === null || typeof own.l2 !== "number" ? null : own.l2 / own.usual;
    const facts = [
      ["L2 norm", own.l2, ratio === null ? "" : `usual ${short(own.usual)}, ${times(ratio)}`],
      ["largest magnitude", own.linf, ""],
      ["zeros", own.zeros, ""],
      ["NaN elements", own.nans, ""],
      ["Inf elements", own.infs, ""],
    ];
    const isCount = (name) => name.includes("elements") || name === "zeros";
    return element(
      "dl",
      { class: "facts" },
      facts
        .filter(([, value]) => value !== undefined)
        .map(([name, value, more]) => [
          element("dt", {}, name),
          element(
            "dd",
            { title: exact(value) },
            isCount(name) ? whole(value) : short(value),
            more ? element("span", { class: "soft" }, ` ${more}`) : null,
          ),
        ]),
    );
  }

  drawWorst(frame) {
    const row = (layer) =>
      element(
        "tr",
        {},
        element(
          "th",
          { scope: "row" },
          button(nameOf(layer.name, 80), () => this.page.go({ layer: layer.name }), {
            class: "plain",
          }),
        ),
        [
          short(layer.l2),
          short(layer.usual),
          short(layer.linf),
          whole(layer.nans),
          whole(layer.infs),
        ].map((text) => element("td", { class: "number" }, text)),
      );
    return element(
      "div",
      { class: "scroll" },
      element(
        "table",
        {},
        element("caption", {}, `The ${count(frame.layers.length, "layer")} farthest from usual`),
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            ["layer", "L2 norm", "usual", "largest", "NaN", "Inf"].map((head, at) =>
              element("th", { scope: "col", class: at ? "number" : "" }, head),
            ),
          ),
        ),
        element("tbody", {}, frame.layers.map(row)),
      ),
    );
  }

  redraw() {
    if (!this.element.hidden) this.charts.forEach((chart) => chart.redraw());
  }
}

// What each rank had at the step. Its own gradient, from before the all-reduce, tells ranks apart.
function rankTable(frame, own) {
  const ranks = frame.ranks ?? [];
  if (!ranks.length) return null;
  const parts = ranks.map((rank) => own?.ranks?.find((each) => each.rank === rank.rank) ?? {});
  const hasLocal = parts.some((part) => (part.local_l2 ?? null) !== null);
  const heads = [
    "rank",
    "L2 norm",
    ...(hasLocal ? ["its own, before the all-reduce"] : []),
    "loss",
    "s/step",
    "",
  ];
  const rows = ranks.map((rank, at) => {
    const cells = [
      short(own ? parts[at].l2 : rank.norm),
      ...(hasLocal ? [short(parts[at].local_l2)] : []),
      short(rank.loss),
      short(rank.step_time_s),
      rank.late ? "late" : "",
    ];
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, `rank ${rank.rank}`),
      cells.map((text) =>
        element("td", { class: `number${/NaN|Inf/.test(text) ? " bad" : ""}` }, text),
      ),
    );
  });
  return element(
    "div",
    { class: "scroll" },
    element(
      "table",
      {},
      element("caption", {}, "Each rank at this step"),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          heads.map((head, at) => element("th", { scope: "col", class: at ? "number" : "" }, head)),
        ),
      ),
      element("tbody", {}, rows),
    ),
  );
}
