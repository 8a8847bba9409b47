// Pages elsewhere about the same run, such as a tracker's. Whoever sent the run named them.

import { element, fill, nameOf } from "../element.js";

/** A line of links. */
export class RunLinks {
  constructor() {
    this.element = element("p", { class: "links", hidden: true });
  }

  /** Show links; @param {Array<{name: string, url: string}>} links as `/runs/{run}` gives them */
  show(links) {
    const shown = links.filter(({ url }) => isWeb(url));
    const key = JSON.stringify(shown);
    if (this.element.dataset.key === key) return; // what the keyboard is in stays
    this.element.dataset.key = key;
    this.element.hidden = !shown.length;
    fill(
      this.element,
      "Also in:",
      shown.map(({ name, url }) =>
        element(
          "a",
          { href: url, title: url, target: "_blank", rel: "noopener noreferrer" },
          nameOf(name),
        ),
      ),
    );
  }
}

// The aggregator lets nothing else through; a script as an address would be worth a second look.
function isWeb(url) {
  try {
    return /^https?:$/.test(new URL(url).protocol);
  } catch {
    return false;
  }
}
