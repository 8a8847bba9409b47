// One run: is it well; if not, where and since when.

import { alertList } from "./alerts.js";
import { announce } from "./announce.js";
import { getJson, runPath } from "./api.js";
import { Chart } from "./chart.js";
import { askToCompare } from "./choosing.js";
import { button, element, fill, printable } from "./element.js";
import { gainsOf } from "./gains.js";
import { groupsOf } from "./groups.js";
import { HeatPanel } from "./heatpanel.js";
import { LayerPanel } from "./layer.js";
import { reached } from "./milestones.js";
import { whole } from "./numbers.js";
import { Panel } from "./panel.js";
import { healthQuestion, RUN_CURVES } from "./questions.js";
import { rankStrip } from "./ranks.js";
import { HeatSource, isFollowing, SeriesSource } from "./rundata.js";
import { askToDelete } from "./removal.js";
import { Verdict } from "./verdict.js";
import { markOf, OVER, RUN_SERIES } from "./words.js";

const RANGES = [128, 512, 1024, 2048, 4096];
const SLOW_MS = 5000; // what changes seldom, or says little by the step
const SELDOM_MS = 60000;
const AROUND = 64; // steps

/** @returns the view of one run at one attempt */
export function runPage(page, state) {
  const [run] = state.runs;
  const [attempt] = state.attempts;
  const parameters = { attempt };
  const heat = new HeatSource(run, attempt);
  const series = new SeriesSource(run, attempt, { columns: RUN_CURVES });
  const found = { health: null, alerts: [], facts: null, layers: null, isOpen: false };
  let slow_at = -Infinity;
  let facts_at = -Infinity;
  let told = null; // ids of alerts that were said

  const verdict = new Verdict(page, run, aroundOf);
  const charts = RUN_CURVES.map(
    (name) =>
      new Chart({
        title: RUN_SERIES.get(name),
        log: name === "norm" || name === "loss",
        onRange: choose,
      }),
  );
  const lines = new Panel(
    "Curves over steps",
    element(
      "div",
      { class: "charts" },
      charts.map((chart) => chart.element),
    ),
  );
  const picture = new HeatPanel(page);
  const cells = new Panel(null, picture.element);
  const drawer = new LayerPanel(page, run, attempt);
  const ranks = new Panel("Ranks");
  const gains = new Panel("Gradient gain from block to block");
  const groups = new Panel("Groups");
  const alerts = new Panel("Alerts");
  alerts.element.id = "alerts";
  const range = element("select", { "aria-label": "Steps shown", onchange: () => chooseRange() });
  const attempts = element("select", {
    "aria-label": "Attempt",
    hidden: true,
    onchange: () => page.go({ attempts: [Number(attempts.value)] }),
  });
  const follow = button("Follow", () => page.go({ from: undefined, to: undefined }), {
    hidden: true,
    title: "Follow the newest steps (l)",
  });
  const compare = button("Compare…", () => askToCompare(page, run, attempt, found.facts), {
    class: "wide",
    title: "Put another run over this one (c)",
  });

  const columns = element(
    "div",
    { class: "columns" },
    ranks.element,
    gains.element,
    groups.element,
  );
  const parts = [lines.element, cells.element, columns, alerts.element];
  const removal = element(
    "p",
    { hidden: true },
    button("Delete this run…", () => askToDelete(run, page)),
  );
  return {
    name: "run",
    controls: [attempts, range, follow, compare],
    elements: [
      verdict.element,
      lines.element,
      cells.element,
      drawer.element,
      columns,
      alerts.element,
      removal,
    ],
    refresh,
    show,
    redraw,
    take,
    age: () => verdict.age(),
    setStale: (since_ms) => verdict.setStale(since_ms),
    isOver: () => (found.health && OVER.has(found.health.phase) ? found.health.phase : null),
    title: () => titleOf(),
    showStep,
    missing,
    toAlerts: () => alerts.element.scrollIntoView(),
    key,
  };

  async function refresh() {
    const health = await getJson(...healthQuestion(run, attempt));
    parts.forEach((part) => (part.hidden = false));
    found.health = health;
    verdict.show(health); // the answer first, then the pictures that prove it
    reached("verdict");
    await Promise.all([lines.run(loadLines), cells.run(loadCells)]);
    const isFirst = told === null;
    await loadSlow(); // after the pictures, which it would keep waiting
    if (isFirst) {
      drawLines(); // where alerts began is known only now
      drawCells();
    }
    drawRange();
    removal.hidden = !OVER.has(health.phase);
    await drawer.load(page.state, found);
  }

  // It was never there, or was deleted while it was looked at.
  function missing(error) {
    parts.forEach((part) => (part.hidden = true));
    verdict.missing(error);
    found.health = null;
  }

  async function loadLines() {
    await series.load(page.state);
    drawLines();
  }

  function drawLines() {
    const { curves } = series;
    if (!curves) return;
    RUN_CURVES.forEach((name, at) => {
      const curve = curves.of(name);
      charts[at].show({
        x: curves.x,
        width: curves.width,
        curves: curve ? [{ ...curve, style: 1 }] : [],
        range: curves.range(page.state),
        alerts: marks(),
      });
    });
  }

  async function loadCells() {
    await heat.load(page.state);
    drawCells();
    if (heat.cells.columns) reached("heatmap");
  }

  function drawCells() {
    if (!heat.cells) return;
    picture.show(heat.cells, {
      alerts: found.alerts,
      order: found.layers?.order ?? "registered",
    });
  }

  async function loadSlow() {
    const isOver = found.health && OVER.has(found.health.phase);
    if (performance.now() - slow_at < (isOver ? SELDOM_MS : SLOW_MS) && told !== null) return;
    slow_at = performance.now();
    await Promise.all([
      alerts.run(loadAlerts),
      ranks.run(async () =>
        ranks.fill(rankStrip(await getJson(runPath(run, "/ranks"), parameters))),
      ),
      gains.run(async () => gains.fill(gainsOf(await getJson(runPath(run, "/gains"), parameters)))),
      groups.run(async () =>
        groups.fill(
          groupsOf(await getJson(runPath(run, "/groups"), parameters), found.health?.groups),
        ),
      ),
      loadFacts(),
    ]);
  }

  // It has every layer in it: for the attempts alone it is not asked for often.
  async function loadFacts() {
    if (performance.now() - facts_at < SELDOM_MS) return;
    facts_at = performance.now();
    try {
      found.facts = await getJson(runPath(run), parameters);
      found.layers ??= await getJson(runPath(run, "/layers"), { ...parameters, limit: 1 });
    } catch (error) {
      if (error.isGone) throw error;
    }
    drawAttempts();
  }

  async function loadAlerts() {
    const answer = await getJson(runPath(run, "/alerts"), parameters);
    found.alerts = answer;
    tell();
    drawAlerts();
  }

  // An alert comes by the stream before the next look: it is drawn at once.
  function take(name, data) {
    if (name !== "alert" || data.run !== run || (attempt !== undefined && data.attempt !== attempt))
      return;
    found.alerts = [data, ...found.alerts.filter((alert) => alert.id !== data.id)];
    slow_at = -Infinity;
    tell();
    drawAlerts();
  }

  function tell() {
    const firing = found.alerts.filter((alert) => alert.state === "firing");
    if (told !== null) {
      for (const alert of firing) {
        if (!told.has(alert.id)) announce(printable(alert.message), alert.severity === "critical");
      }
    }
    told = new Set([...(told ?? []), ...firing.map((alert) => alert.id)]);
  }

  // In the curves only what somebody should know of: the list has the rest.
  function marks() {
    return found.alerts
      .filter((alert) => alert.severity !== "info")
      .map((alert) => ({ step: alert.origin?.step ?? alert.first_step, rule: alert.rule }));
  }

  // Drawing

  function drawAlerts() {
    const firing = found.alerts.filter((alert) => alert.state === "firing").length;
    const resolved = found.alerts.filter((alert) => alert.state === "resolved").length;
    alerts.setTitle(
      found.alerts.length
        ? `Alerts: ${whole(firing)} firing, ${whole(resolved)} resolved`
        : "Alerts",
    );
    alerts.fill(
      found.alerts.length
        ? alertList(found.alerts, page, found.isOpen, (open) => (found.isOpen = open))
        : element("p", { class: "soft" }, "None so far."),
    );
  }

  function drawAttempts() {
    const all = found.facts?.attempts ?? [];
    attempts.hidden = all.length < 2;
    const current = attempt ?? found.facts?.attempt;
    fill(
      attempts,
      all.map((each) =>
        element(
          "option",
          { value: each.attempt, selected: each.attempt === current },
          `attempt ${each.attempt} of ${all.length}`,
        ),
      ),
    );
  }

  function drawRange() {
    const { state: shown } = page;
    const isFixed = !isFollowing(shown);
    const options = RANGES.map((steps) => [String(steps), `last ${whole(steps)} steps`]);
    options.push(["all", "all steps"]);
    if (isFixed)
      options.unshift([
        "fixed",
        `steps ${shown.from === undefined ? "" : whole(shown.from)} to ${shown.to === undefined ? "the newest" : whole(shown.to)}`,
      ]);
    const value = isFixed
      ? shown.from === 0 && shown.to === undefined
        ? "all"
        : "fixed"
      : String(shown.last ?? 512);
    const key = JSON.stringify([options, value]);
    follow.hidden = !isFixed;
    if (range.dataset.key === key) return;
    range.dataset.key = key;
    fill(
      range,
      options.map(([name, text]) =>
        element("option", { value: name, selected: name === value }, text),
      ),
    );
  }

  // Acting

  function choose(from, to) {
    page.go({ from, to, last: undefined });
  }

  function chooseRange() {
    if (range.value === "fixed") return;
    if (range.value === "all") page.go({ from: 0, to: undefined, last: undefined });
    else
      page.go({
        from: undefined,
        to: undefined,
        last: range.value === "512" ? undefined : Number(range.value),
      });
  }

  function show() {
    drawRange();
    picture.draw();
    page.schedule.began_ms = -Infinity; // what a person asked for does not wait for its second
    page.schedule.mark();
    drawer.load(page.state, found);
  }

  function redraw() {
    charts.forEach((chart) => chart.redraw());
    picture.draw();
    drawer.redraw();
    if (found.health) verdict.show(found.health);
  }

  function key(name) {
    if (name === "l") return (page.go({ from: undefined, to: undefined, last: undefined }), true);
    if (name === "0") return (page.go({ from: 0, to: undefined, last: undefined }), true);
    if (name === "c") return (askToCompare(page, run, attempt, found.facts), true);
    if (name === "[" || name === "]") return (nextAlert(name === "]" ? 1 : -1), true);
    if (name === "t") charts.forEach((chart) => chart.toggleTable());
    return picture.key(name);
  }

  function nextAlert(direction) {
    const all = [...found.alerts].sort((one, other) => one.first_step - other.first_step);
    if (!all.length) return announce("no alert");
    const at = all.findIndex((alert) => alert.first_step === page.state.step);
    const next =
      all[
        at < 0 ? (direction > 0 ? 0 : all.length - 1) : (at + direction + all.length) % all.length
      ];
    showStep(
      next.first_step,
      next.origin?.first_gradient ?? next.origin?.layer ?? next.layers[0] ?? "",
    );
    announce(printable(next.message));
  }

  // A step that the picture does not have is shown with those around it.
  function aroundOf(step) {
    const { cells: drawn } = picture;
    if (!drawn?.columns || drawn.columnOf(step) >= 0) return {};
    return { from: Math.max(0, step - AROUND), to: step + AROUND, last: undefined };
  }

  function showStep(step, layer) {
    page.go({ ...aroundOf(step), step, layer });
  }

  function titleOf() {
    const firing = found.health?.alerts.firing ?? 0;
    return `${firing ? `${markOf(found.health.status)}${firing} ` : ""}${printable(run).slice(0, 80)} · gradwatch`;
  }
}
