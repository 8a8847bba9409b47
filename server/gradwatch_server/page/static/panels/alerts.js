// Alerts in a list, and what a person does about one: acknowledge, silence.

import { formatAddress } from "../address.js";
import { announce } from "../announce.js";
import { send } from "../data/api.js";
import { button, element, printable } from "../element.js";
import { whole } from "../numbers.js";
import { severityOf } from "../status.js";
import { ago } from "../time.js";

const SEVERITIES = ["critical", "warning", "info"];
const MOST = 10; // that are over, when none fires
const STATES = ["firing", "pending", "resolved"];

/** Return alerts as they matter: firing first, then by severity, the newest first. */
export function inOrder(alerts) {
  const rank = (alert) => STATES.indexOf(alert.state) * 10 + SEVERITIES.indexOf(alert.severity);
  return [...alerts].sort(
    (one, other) => rank(one) - rank(other) || other.first_step - one.first_step,
  );
}

/** Return where an alert's own page is. */
export function alertAddress(alert) {
  return formatAddress({ runs: [alert.run], alert: alert.id });
}

/** Return what is said of how it stands: `firing · 31 s ago · acknowledged by ada`. */
export function stateOf(alert) {
  const parts = [
    alert.state === "resolved" ? `resolved at ${whole(alert.resolved_step)}` : alert.state,
  ];
  if (alert.acknowledged) parts.push(`acknowledged by ${printable(alert.acknowledged.by)}`);
  if (alert.silenced) parts.push("silenced");
  return parts.join(" · ");
}

/** Return the list: those that fire or may, and the newest of those that are over; then the rest. */
export function alertList(alerts, page, isOpen, toggled) {
  const items = (some) =>
    element(
      "ul",
      { class: "alerts" },
      some.map((alert) => itemOf(alert, page)),
    );
  const ordered = inOrder(alerts);
  const now = ordered.filter((alert) => alert.state !== "resolved");
  const over = ordered
    .filter((alert) => alert.state === "resolved")
    .sort((one, other) => other.first_step - one.first_step);
  const shown = [...now, ...over.splice(0, Math.max(0, MOST - now.length))];
  const rest = element(
    "details",
    { open: isOpen, ontoggle: (event) => toggled(event.target.open) },
    element("summary", {}, `${whole(over.length)} earlier`),
    items(over),
  );
  return [items(shown), over.length ? rest : null];
}

function itemOf(alert, page) {
  const { step } = alert.origin ?? { step: alert.first_step };
  return element(
    "li",
    { "data-alert": alert.id, class: alert.state === "firing" ? "" : "over" },
    severityOf(alert.severity, alert.rule),
    element(
      "span",
      { class: "message" },
      element("a", { href: alertAddress(alert) }, printable(alert.message)),
      element(
        "span",
        { class: "soft" },
        ` ${stateOf(alert)} · first at ${whole(alert.first_step)} · ${ago(alert.updated_at)}`,
      ),
    ),
    element(
      "span",
      { class: "row" },
      button(
        "Show",
        () =>
          page.view.showStep(
            step ?? alert.first_step,
            alert.origin?.layer ?? alert.origin?.first_gradient ?? alert.layers?.[0] ?? "",
          ),
        { "aria-label": `Show alert ${alert.rule} at step ${alert.first_step} in the picture` },
      ),
      alert.state === "firing" ? actionsOf(alert, page) : null,
    ),
  );
}

/** Return the buttons of an alert that fires. */
export function actionsOf(alert, page) {
  const done = () => page.schedule.mark();
  return [
    alert.acknowledged ? null : button("Acknowledge", () => askToAcknowledge(alert, done)),
    alert.silenced ? null : button("Silence…", () => askToSilence(alert, done)),
  ];
}

function remembered() {
  try {
    return localStorage.getItem("gradwatch.name") ?? "";
  } catch {
    return "";
  }
}

// A form over the page; `work` sends it, and what goes wrong is said in it.
function ask(title, fields, label, work, done) {
  const problem = element("p", { class: "is-critical", role: "alert" });
  const name = element("input", {
    name: "by",
    required: true,
    maxlength: "100",
    value: remembered(),
    autocomplete: "name",
  });
  const comment = element("input", { name: "comment", maxlength: "500" });
  const submit = button(label, null, { type: "submit" });
  const shown = element(
    "dialog",
    { "aria-label": title },
    element(
      "form",
      { class: "lines", onsubmit: (event) => (event.preventDefault(), finish()) },
      element("h2", {}, title),
      fields,
      element("label", {}, "Your name", name),
      element("label", {}, "Comment", comment),
      problem,
      element(
        "p",
        { class: "row" },
        submit,
        button("Cancel", () => shown.close()),
      ),
    ),
  );
  shown.addEventListener("close", () => shown.remove());
  document.body.append(shown);
  shown.showModal();

  async function finish() {
    submit.disabled = true;
    try {
      localStorage.setItem("gradwatch.name", name.value);
    } catch {
      // a browser that keeps nothing
    }
    try {
      await work({ by: name.value, comment: comment.value });
      shown.close();
      announce(`${title}: done`);
      done();
    } catch (error) {
      const why =
        error.status === 403
          ? "Your token only reads; this needs the one that writes."
          : error.message;
      problem.textContent = why;
    }
    submit.disabled = false;
  }
}

function askToAcknowledge(alert, done) {
  const path = `/alerts/${encodeURIComponent(alert.id)}/ack`;
  ask(
    `Acknowledge ${alert.rule}`,
    element("p", {}, printable(alert.message)),
    "Acknowledge",
    (said) => send("POST", path, said),
    done,
  );
}

function askToSilence(alert, done) {
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
    [element("label", {}, "Which layers", layers), element("label", {}, "How long", hours)],
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
