// The rules in force, with what each watches for and its settings.

import { getJson } from "../data/api.js";
import { element, fill, printable } from "../element.js";

const BESIDE = new Set(["enabled", "severity"]);

/** @returns the view of all rules */
export function rulesPage() {
  const body = element("section", { class: "panel", "aria-label": "Rules" });
  let drawn = "";
  return {
    name: "rules",
    elements: [
      element("h1", {}, "Rules"),
      element(
        "p",
        { class: "soft" },
        "In the order of evaluation; ",
        element("code", {}, "gradwatch.toml"),
        " changes them.",
      ),
      body,
    ],
    title: () => "rules · gradwatch",
    async refresh() {
      const rules = await getJson("/rules");
      const text = JSON.stringify(rules);
      if (text === drawn) return;
      drawn = text;
      fill(body, tableOf(rules));
    },
  };
}

function tableOf(rules) {
  const rows = rules.map((rule) => {
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
  });
  return element(
    "div",
    { class: "scroll" },
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ["rule", "raises when", "severity", "settings"].map((head) =>
            element("th", { scope: "col" }, head),
          ),
        ),
      ),
      element("tbody", {}, rows),
    ),
  );
}
