// A filter above a list: a text and some choices, all of them parts of the address.

import { element } from "../element.js";

const WAIT_MS = 150; // for the next letter

export class Filter {
  /**
   * @param {Object} page
   * @param {string} label of the text
   * @param {Object<string, [string, string[]]>} choices part of the address to its label and
   *   options, of which the first is none
   */
  constructor(page, label, choices) {
    this.page = page;
    this.search = element("input", { type: "search", placeholder: label, "aria-label": label });
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => page.go({ q: this.search.value }, { replace: true }), WAIT_MS);
    });
    this.choices = Object.entries(choices).map(([name, [text, options]]) =>
      this.choice(name, text, options),
    );
    this.element = element(
      "form.row.filters",
      {
        role: "search",
        onsubmit: (event) => event.preventDefault(),
        hidden: true,
      },
      this.search,
      this.choices,
    );
  }

  choice(name, label, options) {
    const made = element(
      "select",
      {
        name,
        "aria-label": label,
        onchange: () => this.page.go({ [name]: made.selectedIndex ? made.value : "" }),
      },
      options.map((text) => element("option", { value: text }, text)),
    );
    return made;
  }

  /** Show what the address says. */
  take(state) {
    if (document.activeElement !== this.search) this.search.value = state.q ?? "";
    for (const made of this.choices) {
      made.value = state[made.name] ?? "";
      if (made.selectedIndex < 0) made.selectedIndex = 0;
    }
  }
}

/** Tell whether a text has all words of a filter. */
export function hasWords(text, q = "") {
  const lower = text.toLowerCase();
  return q
    .toLowerCase()
    .split(/\s+/)
    .every((word) => lower.includes(word));
}
