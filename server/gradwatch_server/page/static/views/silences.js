// The silences in force, and how to end one.

import { getJson, send } from "../data/api.js";
import { button, element, fill, printable } from "../element.js";
import { clock } from "../time.js";

/** @returns the view of all silences */
export function silencesPage(page) {
  const body = element("section", { class: "panel", "aria-label": "Silences" });
  let drawn = "";
  return {
    name: "silences",
    elements: [element("h1", {}, "Silences"), body],
    title: () => "silences · gradwatch",
    async refresh() {
      const silences = await getJson("/silences");
      const text = JSON.stringify(silences);
      if (text === drawn) return;
      drawn = text;
      fill(
        body,
        silences.length
          ? tableOf(silences)
          : element(
              "p",
              { class: "soft" },
              "None in force. An alert that fires can be silenced from its page; its rule goes on judging.",
            ),
      );
    },
  };

  function tableOf(silences) {
    const heads = ["run", "rule", "layers", "until", "by", "comment", ""];
    const rows = silences.map((silence) => {
      const problem = element("span", { class: "is-critical", role: "alert" });
      const end = button("End it", async () => {
        try {
          await send("DELETE", `/silences/${encodeURIComponent(silence.id)}`);
          page.schedule.mark();
        } catch (error) {
          problem.textContent = error.status === 403 ? "Your token only reads." : error.message;
        }
      });
      const cells = [
        silence.run,
        silence.rule,
        silence.layers,
        clock(silence.until ?? silence.ends_at),
        silence.by,
        silence.comment,
      ];
      return element(
        "tr",
        {},
        cells.map((text) => element("td", {}, printable(text ?? ""))),
        element("td", {}, end, problem),
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
            heads.map((head) => element("th", { scope: "col" }, head)),
          ),
        ),
        element("tbody", {}, rows),
      ),
    );
  }
}
