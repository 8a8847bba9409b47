// A part of a page that loads by itself: if it fails, the others stay, and it says why.

import { button, element, fill, printable, setText } from "../element.js";

/** A heading and what is below it. */
export class Panel {
  /** @param {string|null} title none, if what is in it has its own */
  constructor(title, ...content) {
    this.heading = title === null ? null : element("h2", title);
    this.problem = element("div.failed", { hidden: true, role: "status" });
    this.body = element("div.panel", content);
    this.element = element(
      "section.panel",
      { "aria-label": title },
      this.heading,
      this.problem,
      this.body,
    );
  }

  setTitle(title) {
    setText(this.heading, title);
  }

  fill(...content) {
    fill(this.body, content);
  }

  /** Do some work for it; tell whether it went well. That nobody answers the whole page says. */
  async run(work) {
    try {
      await work();
      this.problem.hidden = true;
      this.body.hidden = false;
      return true;
    } catch (error) {
      if (error.isGone || error.status === 401) throw error;
      if (error.status === undefined) console.error(error);
      this.problem.hidden = false;
      this.body.hidden = true;
      const sentence = `This part is missing: ${printable(error.message)} `;
      if (this.problem.firstChild?.data !== sentence)
        fill(
          this.problem,
          sentence,
          button("Try again", () => this.run(work).catch(() => {})),
        );
      return false;
    }
  }
}
