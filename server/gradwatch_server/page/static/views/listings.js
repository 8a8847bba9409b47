// Tables of what a route answers: the rules in force, and the silences with how to end one.

import { getJson, problemOf, send } from "../data/api.js";
import { button, element, fill, printable } from "../element.js";
import { clock } from "../time.js";

const BESIDE = new Set(["enabled", "severity"]);

/** @returns the view of all rules */
export function rulesPage() {
  const budget = element("span");
  return listingPage({
    name: "rules",
    title: "Rules",
    lead: element(
      "p.soft",
      "In the order of evaluation; ",
      element("code", "gradwatch.toml"),
      " changes them.",
      budget,
    ),
    path: "/rules",
    itemsOf: (answer) => {
      budget.textContent = ` ${answer.false_alerts_per_100k_steps} false alerts in 100,000 steps are allowed.`;
      return answer.rules;
    },
    heads: ["rule", "raises when", "severity", "settings"],
    rowOf: ruleRow,
    nothing: "No rule is in force.",
  });
}

function ruleRow(rule) {
  const { settings } = rule;
  const given = Object.entries(settings).filter(
    ([name, value]) => !BESIDE.has(name) && !(Array.isArray(value) && !value.length),
  );
  return element(
    "tr",
    element("th", { scope: "row" }, element("code", printable(rule.rule))),
    element("td", printable(rule.summary)),
    element("td", settings.enabled === false ? "off" : (settings.severity ?? "on")),
    element(
      "td.soft.small",
      given.map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", "),
    ),
  );
}

/** @returns the view of all silences */
export function silencesPage(page) {
  return listingPage({
    name: "silences",
    title: "Silences",
    path: "/silences",
    heads: ["run", "rule", "layers", "until", "by", "comment", ""],
    rowOf: (silence) => silenceRow(silence, page),
    nothing:
      "None in force. An alert that fires can be silenced from its page; its rule goes on judging.",
  });
}

function silenceRow(silence, page) {
  const problem = element("span.is-critical", { role: "alert" });
  const end = button("End it", async () => {
    try {
      await send("DELETE", `/silences/${encodeURIComponent(silence.id)}`);
      page.schedule.mark();
    } catch (error) {
      problem.textContent = problemOf(error);
    }
  });
  const cells = [
    silence.run,
    silence.rule,
    silence.layers,
    clock(silence.until),
    silence.by,
    silence.comment,
  ];
  return element(
    "tr",
    cells.map((text) => element("td", printable(text ?? ""))),
    element("td", end, problem),
  );
}

/**
 * Return a view that is drawn anew only when the answer changed.
 *
 * @param {{name: string, title: string, lead?: Node, path: string, heads: string[],
 *   rowOf: (item: any) => Node, nothing?: string, itemsOf?: (answer: any) => any[]}} listing
 *   `nothing` is said of an empty answer
 */
function listingPage({
  name,
  title,
  lead = null,
  path,
  heads,
  rowOf,
  nothing,
  itemsOf = (answer) => answer,
}) {
  const body = element("section.panel", { "aria-label": title });
  let drawn = "";
  return {
    name,
    elements: [element("h1", title), lead, body].filter(Boolean),
    title: () => `${name} · gradwatch`,
    async refresh() {
      const items = itemsOf(await getJson(path));
      const text = JSON.stringify(items);
      if (text === drawn) return;
      drawn = text;
      fill(body, items.length ? tableOf(heads, items.map(rowOf)) : element("p.soft", nothing));
    },
  };
}

function tableOf(heads, rows) {
  const head = heads.map((text) => element("th", { scope: "col" }, text));
  return element(
    "div.scroll",
    element("table", element("thead", element("tr", head)), element("tbody", rows)),
  );
}
