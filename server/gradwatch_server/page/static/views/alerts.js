// Alerts of all runs with their history: what fires, and what is over.

import { formatAddress } from "../address.js";
import { getJson } from "../data/api.js";
import { button, element, fill, nameOf, setText } from "../element.js";
import { count, whole } from "../numbers.js";
import { actionsOf, itemOf } from "../panels/alerts.js";
import { Filter, hasWords } from "../panels/filter.js";
import { OVER, SEVERITIES } from "../words.js";

const EVERY_MS = 5000; // the stream tells of news at once
const PAGE = 200;
const MOST = 1000; // alerts of one answer
const STATES = ["firing", "over", "run is over"];

/** Return how an alert stands; one that fired to the end of its run never was over by itself. */
export function standing(alert) {
  if (alert.state === "resolved") return "over";
  return OVER.has(alert.phase) ? "run is over" : "firing";
}

/** @returns the view of the alerts of all runs */
export function alertsPage(page) {
  let alerts = null;
  let limit = PAGE;
  let drawn = "";
  const filter = new Filter(page, "Filter by run, rule or message", {
    status: ["State", ["any state", ...STATES]],
    severity: ["Severity", ["any severity", ...SEVERITIES]],
  });
  const summary = element("p.soft", "Asking for the alerts…");
  const list = element("ul.alerts");
  const none = element("p.soft", { hidden: true });
  const showMore = () => {
    limit = Math.min(limit + PAGE, MOST);
    page.schedule.mark();
  };
  const more = button("Show older ones", showMore, { hidden: true });

  return {
    name: "alerts",
    every_ms: EVERY_MS,
    elements: [
      element("div.row", element("h1", "Alerts"), summary),
      filter.element,
      element("section.panel", { "aria-label": "Alerts of all runs" }, none, list),
      more,
    ],
    async refresh() {
      alerts = await getJson("/alerts/latest", { limit });
      draw();
    },
    show: draw,
    title: () => "alerts · gradwatch",
    focusFilter: () => filter.search.focus(),
  };

  function draw() {
    if (alerts === null) return;
    const { q, status, severity } = page.state;
    filter.take(page.state);
    filter.element.hidden = !alerts.length;
    const chosen = alerts.filter(
      (alert) =>
        hasWords(`${alert.run} ${alert.rule} ${alert.message}`, q) &&
        (!STATES.includes(status) || standing(alert) === status) &&
        (!severity || alert.severity === severity),
    );
    const firing = alerts.filter((alert) => standing(alert) === "firing").length;
    const part = chosen.length === alerts.length ? "" : `${whole(chosen.length)} of `;
    const all = alerts.length < MOST ? "" : ", the newest";
    setText(summary, `${part}${count(alerts.length, "alert")}${all} · ${whole(firing)} firing`);
    more.hidden = alerts.length < limit || limit === MOST;
    none.hidden = chosen.length > 0;
    setText(none, alerts.length ? "No alert matches." : "No alert yet.");
    const text = JSON.stringify(chosen);
    if (text === drawn) return;
    drawn = text;
    fill(
      list,
      chosen.map((alert) => lineOf(alert, page)),
    );
  }
}

function lineOf(alert, page) {
  const { run, attempt, phase } = alert;
  const link = element("a", { href: formatAddress({ run, attempt }) }, nameOf(run, 40));
  const isOver = standing(alert) === "run is over";
  const state = isOver ? `firing to the end of its run (${phase})` : undefined;
  return itemOf(alert, actionsOf(alert, page), [link, " · "], state);
}
