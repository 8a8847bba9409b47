// All runs: which need somebody, how they go.

import { announce } from "../announce.js";
import { getJson } from "../data/api.js";
import { button, element, fill, printable, setText } from "../element.js";
import { setIcon } from "../status.js";
import { count, whole } from "../numbers.js";
import { Filter, hasWords } from "../panels/filter.js";
import { HEADS, RunRow } from "../panels/runrow.js";
import { now } from "../time.js";
import { badness, OVER, PHASES, STATUSES } from "../words.js";

const PAGE = 50;
const MOST = 500;
const MANY_MS = 5000; // least time between two looks at many runs

const DEFAULT = "tcp://127.0.0.1:5555"; // that of `attach`, which needs not be named

const heardAt = (run) => Date.parse(run.updated_at);
const byName = (one, other) => one.run.localeCompare(other.run);
// Runs that are heard all the time would change places all the time: in minutes they are equal.
const byMinute = (one, other) => minutesAgo(one) - minutesAgo(other) || byName(one, other);

const isBad = (run) => badness(run.status) > badness("healthy");

// Bad ones that run, bad ones that ended, then those of which nobody has to know.
const ORDERS = {
  "worst first": (one, other) =>
    isBad(other) - isBad(one) ||
    OVER.has(one.phase) - OVER.has(other.phase) ||
    badness(other.status) - badness(one.status) ||
    byMinute(one, other),
  "last heard": byMinute,
  name: byName,
  step: (one, other) => (other.step ?? -1) - (one.step ?? -1) || byName(one, other),
};

function minutesAgo(run) {
  return Math.floor((now() - heardAt(run)) / 60000);
}

/** The choices of the filter. */
const CHOICES = {
  status: ["Status", ["any status", ...STATUSES]],
  phase: ["Phase", ["any phase", ...PHASES]],
  sort: ["Order", Object.keys(ORDERS)],
};

/** Return those runs that an address asks for, in its order. */
export function chooseRuns(runs, { q, status, phase, sort }) {
  return runs
    .filter(
      (run) =>
        hasWords(run.run, q) &&
        (!status || run.status === status) &&
        (!phase || run.phase === phase),
    )
    .sort(ORDERS[sort] ?? ORDERS["worst first"]);
}

/** @returns the view of all runs */
export function runsPage(page) {
  let runs = null;
  let isCut = false;
  let shown = PAGE;
  const rows = new Map(); // name to its row
  const before = new Map(); // name to the status that was told
  const filter = new Filter(page, "Filter by name", CHOICES);
  const first = new FirstRun();
  const body = element("tbody");
  const table = element("div.scroll", { hidden: true }, tableOf(body));
  const summary = element("p.soft", "Asking for the runs…");
  const showMore = () => {
    shown += PAGE;
    draw();
  };
  const more = button("More", showMore, { hidden: true });
  const hidden = element("span");
  const none = element(
    "p",
    { hidden: true },
    hidden,
    button("Show all", () => page.go("/")),
  );
  const heading = element("div.row", element("h1", "Runs"), summary);

  return {
    name: "runs",
    elements: [heading, filter.element, table, more, none, first.element],
    async refresh() {
      // Of more runs than are sent at once, the filter is to find those that are not among them.
      const q = isCut ? firstWord(page.state.q) : undefined;
      const answer = await getJson("/runs", { limit: MOST, spark: 32, q });
      if (q === undefined) isCut = answer.length === MOST;
      take(answer);
    },
    show: () => (draw(), page.schedule.mark()),
    redraw: () => rows.forEach((row) => row.draw()),
    age: () => rows.forEach((row) => row.age()),
    title() {
      const isFiring = (run) => run.status === "critical" && !OVER.has(run.phase);
      const firing = (runs ?? []).filter(isFiring).length;
      return firing ? `✖${firing} gradwatch` : "gradwatch";
    },
    focusFilter: () => filter.search.focus(),
  };

  function take(answer) {
    runs = answer;
    page.schedule.every_ms = runs.length > PAGE ? MANY_MS : 1000;
    for (const known of [rows, before]) forget(known, runs);
    draw();
    tellChanges();
    setIcon(worstOf(runs));
  }

  function draw() {
    if (runs === null) return;
    filter.take(page.state);
    const chosen = chooseRuns(runs, page.state);
    putRows(chosen.slice(0, shown).map(rowOf));
    table.hidden = !chosen.length;
    more.hidden = chosen.length <= shown;
    const further = whole(Math.min(PAGE, chosen.length - shown));
    setText(more, `Show ${further} more of ${whole(chosen.length)}`);
    setText(summary, summaryOf(chosen.length, runs));
    const isEmpty = !runs.length && !page.state.q;
    filter.element.hidden = isEmpty;
    none.hidden = isEmpty || chosen.length > 0;
    setText(
      hidden,
      `No run matches${runs.length ? `; ${count(runs.length, "is", "are")} hidden` : ""}. `,
    );
    first.element.hidden = !isEmpty;
    if (isEmpty) first.show();
  }

  function rowOf(row) {
    if (!rows.has(row.run)) rows.set(row.run, new RunRow(row.run));
    const known = rows.get(row.run);
    known.show(row);
    return known.element;
  }

  function putRows(made) {
    const place = [...body.children];
    if (made.length === place.length && made.every((row, at) => row === place[at])) return;
    const held = document.activeElement;
    body.replaceChildren(...made);
    if (body.contains(held)) held.focus({ preventScroll: true }); // moving it took it away
  }

  function tellChanges() {
    for (const { run, status } of runs) {
      const was = before.get(run);
      if (was !== undefined && was !== status)
        announce(`${printable(run)}: ${status}, was ${was}`, status === "critical");
      before.set(run, status);
    }
  }
}

function tableOf(body) {
  const heads = HEADS.map(([text, name]) => element("th", { scope: "col", class: name }, text));
  return element(
    "table.runs",
    element("caption.unseen", "Runs"),
    element("thead", element("tr", heads)),
    body,
  );
}

function firstWord(q = "") {
  return q.trim().split(/\s+/)[0] || undefined;
}

function forget(known, runs) {
  const names = new Set(runs.map((run) => run.run));
  for (const name of known.keys()) if (!names.has(name)) known.delete(name);
}

function summaryOf(chosen, runs) {
  if (!runs.length) return "";
  const living = runs.filter((run) => !OVER.has(run.phase)).length;
  const part = chosen === runs.length ? "" : `${whole(chosen)} of `;
  const most = runs.length === MOST ? ", those that sent last: the filter finds others" : "";
  return `${part}${count(runs.length, "run")} · ${whole(living)} living${most}`;
}

function worstOf(runs) {
  const living = runs.filter((run) => !OVER.has(run.phase));
  return living.reduce(
    (worst, run) => (badness(run.status) > badness(worst) ? run.status : worst),
    living.length ? "healthy" : "unknown",
  );
}

// What stands where no run is yet: the line that attaches one, with this aggregator's endpoint.
class FirstRun {
  constructor() {
    this.element = element("section.empty", { hidden: true });
  }

  /** Show it; what the aggregator says of itself is asked for once. */
  async show() {
    this.element.hidden = false;
    this.asked ??= this.fill();
    await this.asked;
  }

  async fill() {
    this.draw([]);
    const { ingest } = await getJson("/healthz").catch(() => ({}));
    this.draw([ingest].flat().filter(Boolean).map(endpointOf));
  }

  draw(endpoints) {
    const where = endpoints.length ? endpoints : [DEFAULT];
    const argument = where.includes(DEFAULT) ? "" : `, endpoint=${JSON.stringify(where[0])}`;
    const snippet = [
      "import gradwatch",
      `watch = gradwatch.attach(model, optimizer, run="my-run"${argument})`,
      "",
    ].join("\n");
    fill(
      this.element,
      element("p.lead", "No run yet."),
      element(
        "p",
        endpoints.length ? "This aggregator listens for records at " : "Records are taken at ",
        element("code", where.join(", ")),
        endpoints.length ? ". " : ", unless it was started with another --ingest. ",
        "In your training loop:",
      ),
      element("pre.snippet", { tabindex: "0" }, snippet),
      element(
        "p.row",
        button("Copy", () => navigator.clipboard?.writeText(snippet)),
        element("span.soft", "or see it happen: "),
        element("code", "gradwatch demo --keep"),
      ),
    );
  }
}

function endpointOf(one) {
  return typeof one === "string" ? one : one.endpoint;
}
