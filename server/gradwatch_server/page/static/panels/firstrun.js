// What stands where no run is yet: the line that attaches one, with this aggregator's endpoint.

import { getJson } from "../data/api.js";
import { button, element, fill } from "../element.js";

const DEFAULT = "tcp://127.0.0.1:5555"; // that of `attach`, which needs not be named

/** The text of an empty list. */
export class FirstRun {
  constructor() {
    this.element = element("section", { class: "empty", hidden: true });
  }

  /** Show it; what the aggregator says of itself is asked for once. */
  async show() {
    this.element.hidden = false;
    this.asked ??= this.fill();
    await this.asked;
  }

  async fill() {
    this.draw([]);
    const { ingest } = await getJson("/healthz").catch(() => ({}));
    this.draw([ingest].flat().filter(Boolean).map(endpointOf));
  }

  draw(endpoints) {
    const where = endpoints.length ? endpoints : [DEFAULT];
    const argument = where.includes(DEFAULT) ? "" : `, endpoint=${JSON.stringify(where[0])}`;
    const snippet = [
      "import gradwatch",
      `watch = gradwatch.attach(model, optimizer, run="my-run"${argument})`,
      "",
    ].join("\n");
    fill(
      this.element,
      element("p", { class: "lead" }, "No run yet."),
      element(
        "p",
        {},
        endpoints.length ? "This aggregator listens for records at " : "Records are taken at ",
        element("code", {}, where.join(", ")),
        endpoints.length ? ". " : ", unless it was started with another --ingest. ",
        "In your training loop:",
      ),
      element("pre", { class: "snippet", tabindex: "0" }, snippet),
      element(
        "p",
        { class: "row" },
        button("Copy", () => navigator.clipboard?.writeText(snippet)),
        element("span", { class: "soft" }, "or see it happen: "),
        element("code", {}, "gradwatch demo --keep"),
      ),
    );
  }
}

function endpointOf(one) {
  return typeof one === "string" ? one : one.endpoint;
}
