// The rules in force, with what each watches for and its settings.

import { element, printable } from "../element.js";
import { listingPage } from "./listing.js";

const BESIDE = new Set(["enabled", "severity"]);

/** @returns the view of all rules */
export function rulesPage() {
  const budget = element("span");
  return listingPage({
    name: "rules",
    title: "Rules",
    lead: element(
      "p",
      { class: "soft" },
      "In the order of evaluation; ",
      element("code", {}, "gradwatch.toml"),
      " changes them.",
      budget,
    ),
    path: "/rules",
    itemsOf: (answer) => {
      budget.textContent = ` ${answer.false_alerts_per_100k_steps} false alerts in 100,000 steps are allowed.`;
      return answer.rules;
    },
    heads: ["rule", "raises when", "severity", "settings"],
    rowOf,
    nothing: "No rule is in force.",
  });
}

function rowOf(rule) {
  const { settings } = rule;
  const given = Object.entries(settings).filter(
    ([name, value]) => !BESIDE.has(name) && !(Array.isArray(value) && !value.length),
  );
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, element("code", {}, printable(rule.rule))),
    element("td", {}, printable(rule.summary ?? rule.what ?? "")),
    element("td", {}, settings.enabled === false ? "off" : (settings.severity ?? "on")),
    element(
      "td",
      { class: "soft small" },
      given.map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", "),
    ),
  );
}
