// What a person does about an alert that fires: acknowledge, silence.

import { announce } from "../announce.js";
import { keep, recall } from "../choices.js";
import { problemOf, send } from "../data/api.js";
import { button, element, printable } from "../element.js";
import { openDialog } from "./dialog.js";

// A form over the page; `work` sends it, and what goes wrong is said in it.
function ask(title, fields, label, work, done) {
  const problem = element("p.is-critical", { role: "alert" });
  const name = element("input", {
    name: "by",
    required: true,
    maxlength: "100",
    value: recall("name") ?? "",
    autocomplete: "name",
  });
  const comment = element("input", { name: "comment", maxlength: "500" });
  const submit = button(label, null, { type: "submit" });
  const shown = openDialog(
    title,
    element(
      "form.lines",
      { onsubmit: (event) => (event.preventDefault(), finish()) },
      element("h2", title),
      fields,
      element("label", "Your name", name),
      element("label", "Comment", comment),
      problem,
      element(
        "p.row",
        submit,
        button("Cancel", () => shown.close()),
      ),
    ),
  );

  async function finish() {
    submit.disabled = true;
    keep("name", name.value);
    try {
      await work({ by: name.value, comment: comment.value });
      shown.close();
      announce(`${title}: done`);
      done();
    } catch (error) {
      problem.textContent = problemOf(error);
    }
    submit.disabled = false;
  }
}

/** Ask who knows of an alert, and send it; `done` is called then. */
export function askToAcknowledge(alert, done) {
  const path = `/alerts/${encodeURIComponent(alert.id)}/ack`;
  ask(
    `Acknowledge ${alert.rule}`,
    element("p", printable(alert.message)),
    "Acknowledge",
    (said) => send("POST", path, said),
    done,
  );
}

/** Ask what of an alert is to be silenced and how long, and send it; `done` is called then. */
export function askToSilence(alert, done) {
  const layers = element(
    "select",
    { name: "layers" },
    element("option", { value: "*" }, "all layers"),
    alert.origin?.layer
      ? element("option", { value: alert.origin.layer }, printable(alert.origin.layer))
      : null,
  );
  const hours = element(
    "select",
    { name: "hours" },
    [1, 8, 24, 168].map((each) =>
      element(
        "option",
        { value: String(each), selected: each === 8 },
        each === 168 ? "a week" : `${each} h`,
      ),
    ),
  );
  ask(
    `Silence ${alert.rule} in ${printable(alert.run)}`,
    [element("label", "Which layers", layers), element("label", "How long", hours)],
    "Silence",
    (said) =>
      send("POST", "/silences", {
        run: literal(alert.run),
        rule: alert.rule,
        layers: layers.value === "*" ? "*" : literal(layers.value),
        for_s: 3600 * Number(hours.value),
        ...said,
      }),
    done,
  );
}

// Patterns: what stands for more in them is put in brackets, so that a name means itself.
function literal(name) {
  return name.replace(/[*?[]/g, (character) => `[${character}]`);
}
