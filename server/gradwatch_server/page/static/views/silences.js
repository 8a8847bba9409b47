// The silences in force, and how to end one.

import { problemOf, send } from "../data/api.js";
import { button, element, printable } from "../element.js";
import { clock } from "../time.js";
import { listingPage } from "./listing.js";

/** @returns the view of all silences */
export function silencesPage(page) {
  return listingPage({
    name: "silences",
    title: "Silences",
    path: "/silences",
    heads: ["run", "rule", "layers", "until", "by", "comment", ""],
    rowOf: (silence) => rowOf(silence, page),
    nothing:
      "None in force. An alert that fires can be silenced from its page; its rule goes on judging.",
  });
}

function rowOf(silence, page) {
  const problem = element("span", { class: "is-critical", role: "alert" });
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
}
