// A page that is one table of what a route answers, drawn anew only when that changed.

import { getJson } from "../data/api.js";
import { element, fill } from "../element.js";

/**
 * Return the view.
 *
 * @param {{name: string, title: string, lead?: Node, path: string, heads: string[],
 *   rowOf: (item: any) => Node, nothing?: string, itemsOf?: (answer: any) => any[]}} listing
 *   `nothing` is said of an empty answer
 */
export function listingPage({
  name,
  title,
  lead = null,
  path,
  heads,
  rowOf,
  nothing,
  itemsOf = (answer) => answer,
}) {
  const body = element("section", { class: "panel", "aria-label": title });
  let drawn = "";
  return {
    name,
    elements: [element("h1", {}, title), lead, body].filter(Boolean),
    title: () => `${name} · gradwatch`,
    async refresh() {
      const items = itemsOf(await getJson(path));
      const text = JSON.stringify(items);
      if (text === drawn) return;
      drawn = text;
      fill(
        body,
        items.length ? tableOf(heads, items.map(rowOf)) : element("p", { class: "soft" }, nothing),
      );
    },
  };
}

function tableOf(heads, rows) {
  const head = heads.map((text) => element("th", { scope: "col" }, text));
  return element(
    "div",
    { class: "scroll" },
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows)),
  );
}
