// One layer at one step: its own curves, what it was then, and what each rank had.

import { Chart } from "../charts/chart.js";
import { loadFrame, SeriesSource } from "../data/rundata.js";
import { button, element, fill, nameOf } from "../element.js";
import { whole } from "../numbers.js";
import { COLUMNS } from "../words.js";
import { frameNumbers, frameSentence } from "./frame.js";
import { Panel } from "./panel.js";

const CURVES = ["l2", "linf", "mean_abs"];
const UPDATE = ["update_rms", "weight_rms"];
const USUAL_RATIO = 1e-3; // of update to weight, in most trainings

/** The panel below the picture; hidden while no layer and no step is chosen. */
export class LayerPanel {
  constructor(page, run, attempt) {
    this.page = page;
    this.run = run;
    this.attempt = attempt;
    this.layer = null;
    this.step = null;
    this.source = null;
    this.hasFrame = false;
    this.heading = element("h2");
    this.charts = CURVES.map(
      (name) =>
        new Chart({
          title: COLUMNS.get(name),
          onRange: page.choose,
        }),
    );
    this.ratio = new Chart({ title: "update / weight", onRange: page.choose });
    const charts = [...this.charts, this.ratio].map((chart) => chart.element);
    this.curves = new Panel(null, element("div.charts", charts));
    this.frame = new Panel(null);
    const close = button("Close", () => page.go({ layer: "", step: undefined }), {
      class: "push",
      title: "Close (Esc)",
    });
    this.element = element(
      "section.panel.drawer",
      { hidden: true, "aria-label": "Layer" },
      element("div.row.head", this.heading, close),
      this.curves.element,
      this.frame.element,
    );
  }

  /** Show the layer and step of a state. */
  async load({ layer = null, step = null, ...range }, { alerts }) {
    const isOpen = layer !== null || step !== null;
    this.element.hidden = !isOpen;
    if (layer !== this.layer || step !== this.step) this.begin(layer, step);
    if (!isOpen) return;
    this.curves.element.hidden = layer === null;
    this.frame.element.hidden = step === null;
    const [hasCurves] = await Promise.all([
      layer === null || this.curves.run(() => this.loadCurves(range, alerts)),
      step === null || this.hasFrame || this.frame.run(() => this.loadFrame()),
    ]);
    if (!hasCurves) this.frame.element.hidden = true; // it would say the same again
  }

  begin(layer, step) {
    this.layer = layer;
    this.step = step;
    this.hasFrame = false;
    this.source =
      layer === null
        ? null
        : new SeriesSource(this.run, this.attempt, {
            columns: [...CURVES, ...UPDATE],
            layers: [layer],
          });
    this.eachChart((chart) => chart.clear());
    this.frame.fill();
    fill(
      this.heading,
      layer === null ? "All ranks and the worst layers" : nameOf(layer, 4096),
      step === null ? "" : ` · step ${whole(step)}`,
    );
    if (layer !== null || step !== null)
      requestAnimationFrame(() => this.element.scrollIntoView({ block: "nearest" }));
  }

  async loadCurves(range, alerts) {
    const { layer, source } = this;
    const curves = await source.load(range);
    if (source !== this.source) return;
    const show = (chart, curve, ...others) => {
      chart.element.hidden =
        !curve || !curve.last.some((value, place) => !Number.isNaN(value) || curve.bad?.[place]);
      chart.show({
        x: curves.x,
        width: curves.width,
        curves: curve ? [{ ...curve, style: 1 }, ...others] : [],
        range: curves.range(range),
        step: this.step,
        alerts: alerts.map((alert) => ({ step: alert.origin?.step ?? alert.first_step })),
      });
    };
    CURVES.forEach((name, at) => show(this.charts[at], curves.of(name, layer)));
    const [update, weight] = UPDATE.map((name) => curves.of(name, layer));
    show(this.ratio, ratioOf(update, weight), usualRatio(curves.x));
  }

  async loadFrame() {
    const { layer, step } = this;
    const wanted = layer === null ? undefined : [layer];
    const frame = await loadFrame(this.run, this.attempt, step, wanted);
    if (layer !== this.layer || step !== this.step) return;
    this.hasFrame = true;
    this.frame.fill(element("p.soft", frameSentence(frame)), frameNumbers(frame, layer, this.page));
  }

  redraw() {
    if (!this.element.hidden) this.eachChart((chart) => chart.redraw());
  }

  close() {
    this.eachChart((chart) => chart.close());
  }

  eachChart(act) {
    [...this.charts, this.ratio].forEach(act);
  }
}

// Return one curve over the other, null without both: weights hardly change within a bucket.
function ratioOf(update, weight) {
  if (!update || !weight) return null;
  const over = (values) => Array.from(values, (value, at) => value / weight.last[at]);
  return {
    label: "now",
    last: over(update.last),
    min: over(update.min),
    max: over(update.max),
  };
}

function usualRatio(x) {
  const values = Array.from(x, () => USUAL_RATIO);
  return { label: "usual", last: values, min: values, max: values, style: 2, dash: [4, 4] };
}
