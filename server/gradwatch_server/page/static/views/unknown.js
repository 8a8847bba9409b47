// An address that leads to no page.

import { element, printable } from "../element.js";

/** @returns the view that says so, and what there is */
export function unknownPage(page, state) {
  return {
    name: "unknown",
    elements: [
      element("h1", "There is no such page"),
      element("p", `The address says page=${printable(state.page)}. There are:`),
      element(
        "ul",
        [
          ["/", "all runs"],
          ["/?page=silences", "silences"],
          ["/?page=rules", "rules"],
        ].map(([href, text]) => element("li", element("a", { href }, text))),
      ),
    ],
    title: () => "no such page · gradwatch",
    refresh: async () => {},
  };
}
