// One run: is it well; if not, where and since when.

import { alertList } from "../panels/alerts.js";
import { announce } from "../announce.js";
import { getJson, runPath } from "../data/api.js";
import { Chart } from "../charts/chart.js";
import { button, element, printable, setText } from "../element.js";
import { namedLayers } from "../heatmap/names.js";
import { HeatPanel } from "../heatmap/panel.js";
import { LayerPanel } from "../panels/layer.js";
import { whole } from "../numbers.js";
import { Beside } from "../panels/beside.js";
import { OtherRun } from "../panels/otherrun.js";
import { Panel } from "../panels/panel.js";
import { RunControls } from "../panels/runcontrols.js";
import { healthQuestion, RUN_CURVES } from "../data/questions.js";
import { HeatSource, SeriesSource } from "../data/rundata.js";
import { askToDelete } from "../dialogs/removal.js";
import { Verdict } from "../panels/verdict.js";
import { markOf, OVER, RUN_SERIES } from "../words.js";

const SLOW_MS = 5000; // what changes seldom, or says little by the step
const SELDOM_MS = 60000;
const AROUND = 64; // steps

/** @returns the view of one run at one attempt */
export function runPage(page, state) {
  const { run, attempt } = state;
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
        onRange: page.choose,
      }),
  );
  const coarse = element("p.soft.small");
  const other = new OtherRun(page, run);
  const lines = new Panel(
    "Curves over steps",
    coarse,
    other.words,
    element(
      "div.charts",
      charts.map((chart) => chart.element),
    ),
  );
  const picture = new HeatPanel(page);
  const cells = new Panel(null, picture.element);
  const drawer = new LayerPanel(page, run, attempt);
  const alerts = new Panel("Alerts");
  alerts.element.id = "alerts";
  const controls = new RunControls(page, attempt);
  const beside = new Beside(page, run, attempt);
  const parts = [lines.element, cells.element, beside.element, alerts.element];
  const removal = element(
    "p",
    { hidden: true },
    button("Delete this run…", () => askToDelete(run, page)),
  );
  return {
    name: "run",
    controls: [...controls.elements, ...other.controls],
    elements: [
      verdict.element,
      lines.element,
      cells.element,
      drawer.element,
      beside.element,
      alerts.element,
      removal,
    ],
    refresh,
    show,
    redraw,
    close,
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
    const pictures = Promise.all([lines.run(loadLines), cells.run(loadCells)]);
    pictures.catch(() => {}); // told below, unless there is no such run
    const health = await getJson(...healthQuestion(run, attempt));
    parts.forEach((part) => (part.hidden = false));
    found.health = health;
    verdict.show(health);
    await pictures;
    const isFirst = told === null;
    await loadSlow(); // after the pictures, which it would keep waiting
    if (isFirst) {
      drawLines(); // where alerts began is known only now
      drawCells();
    }
    controls.showRange(page.state);
    removal.hidden = !OVER.has(health.phase);
    await drawer.load(page.state, found);
  }

  // It was never there, or was deleted while it was looked at.
  function missing(error) {
    [...parts, removal].forEach((part) => (part.hidden = true));
    verdict.missing(error);
    found.health = null;
  }

  async function loadLines() {
    const curves = await series.load(page.state);
    drawLines();
    if (await other.load(page.state, curves.range(page.state))) drawLines();
  }

  function drawLines() {
    const { found: curves } = series;
    if (!curves) return;
    setText(coarse, coarseness(curves.width));
    other.compare(curves, found.health);
    RUN_CURVES.forEach((name, at) => {
      charts[at].show({
        ...other.joined(curves, name),
        width: curves.width,
        range: curves.range(page.state),
        alerts: marks(),
      });
    });
  }

  async function loadCells() {
    await heat.load(page.state);
    drawCells();
  }

  function drawCells() {
    if (!heat.found) return;
    picture.show(heat.found, {
      alerts: found.alerts,
      order: found.layers?.order ?? "registered",
    });
  }

  async function loadSlow() {
    const isOver = found.health && OVER.has(found.health.phase);
    if (performance.now() - slow_at < (isOver ? SELDOM_MS : SLOW_MS) && told !== null) return;
    slow_at = performance.now();
    await Promise.all([alerts.run(loadAlerts), beside.load(found.health), loadFacts()]);
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
    controls.showAttempts(found.facts);
  }

  async function loadAlerts() {
    const answer = await getJson(runPath(run, "/alerts"), parameters);
    found.alerts = answer;
    tell();
    drawAlerts();
  }

  // An alert comes by the stream before the next look: it is drawn at once.
  function take(alert) {
    if (alert.run !== run || (attempt !== undefined && alert.attempt !== attempt)) return;
    found.alerts = [alert, ...found.alerts.filter((other) => other.id !== alert.id)];
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
    const key = JSON.stringify(found.alerts);
    if (key === found.drawn) return; // what the keyboard is in stays
    found.drawn = key;
    alerts.fill(
      found.alerts.length
        ? alertList(found.alerts, page, found.isOpen, (open) => (found.isOpen = open))
        : element("p.soft", "None so far."),
    );
  }

  // Acting

  function show() {
    controls.showRange(page.state);
    picture.draw();
    page.schedule.began_ms = -Infinity; // what a person asked for does not wait for its second
    page.schedule.mark();
    drawer.load(page.state, found).catch(() => {}); // the next look says that nobody answers
  }

  function close() {
    charts.forEach((chart) => chart.close());
    [picture, drawer, beside].forEach((each) => each.close());
  }

  function redraw() {
    charts.forEach((chart) => chart.redraw());
    picture.draw();
    drawer.redraw();
    beside.redraw();
    if (found.health) verdict.show(found.health);
  }

  function key(name) {
    if (name === "l") return (controls.followNewest(page.state.last), true);
    if (name === "0") return (controls.showAll(), true);
    if (name === "[" || name === "]") return (nextAlert(name === "]" ? 1 : -1), true);
    if (name === "t") charts.forEach((chart) => chart.toggleTable());
    return picture.keys.key(name);
  }

  function nextAlert(direction) {
    const all = [...found.alerts].sort((one, other) => one.first_step - other.first_step);
    if (!all.length) return announce("no alert");
    const at = all.findIndex((alert) => alert.first_step === page.state.step);
    const next =
      all[
        at < 0 ? (direction > 0 ? 0 : all.length - 1) : (at + direction + all.length) % all.length
      ];
    showStep(next.first_step, namedLayers(next)[0] ?? "");
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

// A point of many steps hides none of them: the sentence says how to read it.
function coarseness(width) {
  return width > 1
    ? `${whole(width)} steps in a point: the band is from their least to their largest value, the line their last. Choose fewer steps to see each.`
    : "";
}
