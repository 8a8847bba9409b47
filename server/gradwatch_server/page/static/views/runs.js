// All runs: which need somebody, how they go.

import { runAddress } from "../address.js";
import { getJson } from "../data/api.js";
import { announce } from "../announce.js";
import { button, element, fill, nameOf, setText } from "../element.js";
import { setIcon } from "../icon.js";
import { count, scoreText, seconds, short, whole } from "../numbers.js";
import { sparkline } from "../charts/sparkline.js";
import { statusOf } from "../status.js";
import { now, span } from "../time.js";
import { badness, OVER, PHASES, STATUSES } from "../words.js";

const PAGE = 50;
const MOST = 500;
const MANY_MS = 5000; // least time between two looks at many runs

/** @returns the view of all runs */
export function runsPage(page, state) {
  let runs = null;
  let shown = PAGE;
  const rows = new Map(); // name to what is drawn of it
  const before = new Map(); // name to the status that was told
  const filter = makeFilter();
  const body = element("tbody");
  const table = element(
    "div",
    { class: "scroll", hidden: true },
    element(
      "table",
      { class: "runs" },
      element("caption", { class: "unseen" }, "Runs"),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          HEADS.map(([text, name]) => element("th", { scope: "col", class: name }, text)),
        ),
      ),
      body,
    ),
  );
  const summary = element("p", { class: "soft" }, "Asking for the runs…");
  const more = button(
    "More",
    () => {
      shown += PAGE;
      draw();
    },
    { hidden: true },
  );
  const empty = element("section", { class: "empty", hidden: true });
  const heading = element("h1", {}, "Runs");

  return {
    name: "runs",
    elements: [
      element("div", { class: "row" }, heading, summary),
      filter.element,
      table,
      more,
      empty,
    ],
    async refresh() {
      const answer = await getJson("/runs", { limit: MOST, spark: 32 });
      runs = answer;
      page.schedule.every_ms = runs.length > PAGE ? MANY_MS : 1000;
      draw();
    },
    show: draw,
    redraw: () => {
      rows.clear();
      draw();
    },
    age() {
      for (const { row, heard } of rows.values()) setText(heard, heardOf(row));
    },
    title() {
      const firing = (runs ?? []).filter(
        (run) => badness(run.status) === badness("critical") && !OVER.has(run.phase),
      ).length;
      return firing ? `✖${firing} gradwatch` : "gradwatch";
    },
    focusFilter: () => filter.focus(),
  };

  function draw() {
    if (runs === null) return;
    filter.take(page.state);
    const chosen = runs.filter((run) => filter.takes(run)).sort(filter.order());
    const drawn = chosen.slice(0, shown);
    const made = drawn.map((row) => rowOf(row));
    for (const name of rows.keys()) if (!runs.some((run) => run.run === name)) rows.delete(name);
    const place = [...body.children];
    if (made.length !== place.length || made.some((row, at) => row !== place[at])) {
      const held = document.activeElement;
      body.replaceChildren(...made);
      if (body.contains(held)) held.focus({ preventScroll: true }); // moving it took it away
    }
    table.hidden = !chosen.length;
    more.hidden = chosen.length <= shown;
    setText(
      more,
      `Show ${whole(Math.min(PAGE, chosen.length - shown))} more of ${whole(chosen.length)}`,
    );
    setText(summary, summaryOf(chosen.length, runs));
    filter.element.hidden = !runs.length;
    drawEmpty(chosen.length);
    tellChanges();
    setIcon(worstOf(runs));
  }

  function rowOf(row) {
    const known = rows.get(row.run);
    const text = JSON.stringify(row);
    if (known?.text === text) return known.element;
    const heard = element("td", { class: "number soft" }, heardOf(row));
    const made = drawRow(row, heard);
    rows.set(row.run, { element: made, text, heard, row });
    return made;
  }

  function drawEmpty(chosen) {
    empty.hidden = chosen > 0;
    if (chosen > 0) return;
    if (runs.length) {
      fill(
        empty,
        element(
          "p",
          {},
          `No run matches; ${count(runs.length, "is", "are")} hidden. `,
          button("Show all", () => page.go("/")),
        ),
      );
      return;
    }
    if (!empty.childElementCount) drawFirst();
  }

  async function drawFirst() {
    const snippet = 'watch = gradwatch.attach(model, optimizer, run="my-run")';
    let where = null;
    fill(empty, element("p", { class: "lead" }, "No run yet."));
    try {
      where = (await getJson("/healthz")).ingest ?? null;
    } catch {
      // it says so itself
    }
    const endpoints = [where]
      .flat()
      .filter(Boolean)
      .map((one) => (typeof one === "string" ? one : one.endpoint));
    fill(
      empty,
      element("p", { class: "lead" }, "No run yet."),
      element(
        "p",
        {},
        endpoints.length
          ? [
              "This aggregator listens for records at ",
              element("code", {}, endpoints.join(", ")),
              ". ",
            ]
          : "This aggregator takes records. ",
        "In your training loop:",
      ),
      element("pre", { class: "snippet", tabindex: "0" }, `import gradwatch\n${snippet}`),
      element(
        "p",
        { class: "row" },
        button("Copy", () => navigator.clipboard?.writeText(`import gradwatch\n${snippet}\n`)),
        element("span", { class: "soft" }, "or see it happen: "),
        element("code", {}, "scripts/demo --keep"),
      ),
    );
  }

  function tellChanges() {
    for (const { run, status } of runs) {
      const was = before.get(run);
      if (was !== undefined && was !== status)
        announce(`${run}: ${status}, was ${was}`, status === "critical");
      before.set(run, status);
    }
  }

  function makeFilter() {
    const search = element("input", {
      type: "search",
      placeholder: "Filter by name",
      "aria-label": "Filter by name",
      value: state.q ?? "",
    });
    const status = choice("Status", ["any status", ...STATUSES]);
    const phase = choice("Phase", ["any phase", ...PHASES]);
    const sort = choice("Order", ["worst first", "last heard", "name", "step"]);
    let timer;
    search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => page.go({ q: search.value }, { replace: true }), 150);
    });
    const pick = (name, field) =>
      field.addEventListener("change", () =>
        page.go({ [name]: field.selectedIndex ? field.value : "" }),
      );
    pick("status", status);
    pick("phase", phase);
    pick("sort", sort);
    return {
      element: element(
        "form",
        {
          class: "filters",
          role: "search",
          onsubmit: (event) => event.preventDefault(),
          hidden: true,
        },
        search,
        status,
        phase,
        sort,
      ),
      focus: () => search.focus(),
      take(now) {
        if (document.activeElement !== search) search.value = now.q ?? "";
        status.value = now.status ?? "any status";
        phase.value = now.phase ?? "any phase";
        sort.value = now.sort ?? "worst first";
      },
      takes(run) {
        const words = (page.state.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
        return (
          words.every((word) => run.run.toLowerCase().includes(word)) &&
          (!page.state.status || run.status === page.state.status) &&
          (!page.state.phase || run.phase === page.state.phase)
        );
      },
      order: () => ORDERS[page.state.sort] ?? ORDERS["worst first"],
    };
  }
}

const HEADS = [
  ["status · phase", ""],
  ["run", ""],
  ["step", "number"],
  ["s/step", "number"],
  ["gradient norm", ""],
  ["score", "number"],
  ["ranks", "number"],
  ["alerts", ""],
  ["heard", "number"],
];

const heardOrder = (one, other) => Date.parse(other.updated_at) - Date.parse(one.updated_at);
const ORDERS = {
  "worst first": (one, other) =>
    OVER.has(one.phase) - OVER.has(other.phase) ||
    badness(other.status) - badness(one.status) ||
    heardOrder(one, other),
  "last heard": heardOrder,
  name: (one, other) => one.run.localeCompare(other.run),
  step: (one, other) => (other.step ?? -1) - (one.step ?? -1),
};

function choice(label, options) {
  return element(
    "select",
    { "aria-label": label },
    options.map((text) => element("option", { value: text }, text)),
  );
}

function heardOf(row) {
  return span((now() - Date.parse(row.updated_at)) / 1000);
}

function summaryOf(chosen, runs) {
  const living = runs.filter((run) => !OVER.has(run.phase)).length;
  const part = chosen === runs.length ? "" : `${whole(chosen)} of `;
  return runs.length ? `${part}${count(runs.length, "run")} · ${whole(living)} living` : "";
}

function worstOf(runs) {
  const living = runs.filter((run) => !OVER.has(run.phase));
  return living.reduce(
    (worst, run) => (badness(run.status) > badness(worst) ? run.status : worst),
    living.length ? "healthy" : "unknown",
  );
}

function drawRow(row, heard) {
  const spark = row.spark ?? null;
  return element(
    "tr",
    { class: "link" },
    element("td", {}, statusOf(row.status, row.phase)),
    element(
      "td",
      {},
      element("a", { class: "whole", href: runAddress(row.run) }, nameOf(row.run, 80)),
      row.attempt > 1 ? element("span", { class: "soft" }, ` attempt ${row.attempt}`) : null,
    ),
    element("td", { class: "number" }, row.step === null ? "no step" : whole(row.step)),
    element(
      "td",
      { class: "number wide" },
      row.step_time_s == null
        ? ""
        : element("span", { title: seconds(row.step_time_s) }, short(row.step_time_s)),
    ),
    element(
      "td",
      { class: "wide" },
      spark === null
        ? ""
        : element(
            "span",
            { class: "sparkcell" },
            sparkline(spark, `gradient norm of ${row.run}`),
            element("span", {}, short(lastOf(spark))),
          ),
    ),
    element("td", { class: "number wide" }, row.score === null ? "" : scoreText(row.score)),
    element("td", { class: "number wide" }, ranksOf(row)),
    element("td", {}, alertsOf(row)),
    heard,
  );
}

function lastOf(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known[known.length - 1] : null;
}

function ranksOf(row) {
  return `${typeof row.ranks === "number" ? row.ranks : row.world}/${row.world}`;
}

const LETTERS = [
  ["critical", "c"],
  ["warning", "w"],
  ["info", "i"],
];

function alertsOf(row) {
  return LETTERS.filter(([severity]) => row.alerts?.[severity]).map(([severity, letter]) =>
    element(
      "span",
      { class: `is-${severity} nowrap`, title: count(row.alerts[severity], severity) },
      `${row.alerts[severity]}${letter} `,
    ),
  );
}
