// Asks what a run is to be compared with: another run, or another of its attempts.

import { formatAddress } from "../address.js";
import { getJson } from "../data/api.js";
import { element, printable } from "../element.js";
import { dialogHead, openDialog } from "./dialog.js";

/** Offer the other runs, and the attempts of this one that are known. */
export async function askToCompare(page, run, attempt, facts) {
  const others = (await getJson("/runs", { limit: 200 })).filter((each) => each.run !== run);
  const own = attempt ?? facts?.attempt;
  const earlier = (facts?.attempts ?? []).filter((each) => each.attempt !== own);
  const options = [
    ...earlier.map((each) => [
      `attempt ${each.attempt} of this run`,
      { runs: [run, run], attempts: [own, each.attempt] },
    ]),
    ...others.map((each) => [printable(each.run), { runs: [run, each.run], attempts: [] }]),
  ];
  const link = ([text, chosen]) =>
    element(
      "li",
      {},
      element("a", { href: formatAddress(chosen), onclick: () => shown.close() }, text),
    );
  const shown = openDialog(
    "Compare",
    dialogHead("Compare with"),
    options.length
      ? element("ul", {}, options.map(link))
      : element("p", {}, "There is no other run and no other attempt."),
  );
}
