// Alerts in a list: what fires first, with what can be done about each.

import { formatAddress } from "../address.js";
import { askToAcknowledge, askToSilence } from "../dialogs/alerting.js";
import { button, element, printable } from "../element.js";
import { namedLayers } from "../heatmap/names.js";
import { whole } from "../numbers.js";
import { statusOf } from "../status.js";
import { agoOf } from "../time.js";
import { SEVERITIES } from "../words.js";

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
  return formatAddress({ run: alert.run, alert: alert.id });
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
      "ul.alerts",
      some.map((alert) => itemOf(alert, [showButton(alert, page), ...actionsOf(alert, page)])),
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
    element("summary", `${whole(over.length)} earlier`),
    items(over),
  );
  return [items(shown), over.length ? rest : null];
}

/** Return the item of an alert in a list: what can be done, what stands first, how it stands. */
export function itemOf(alert, actions, before = null, state = stateOf(alert)) {
  return element(
    "li",
    { "data-alert": alert.id, class: alert.state === "firing" ? "" : "over" },
    statusOf(alert.severity, alert.rule),
    element(
      "span.message",
      before,
      element("a", { href: alertAddress(alert) }, printable(alert.message)),
      element(
        "span.soft",
        ` ${state} · first at ${whole(alert.first_step)} · `,
        agoOf(alert.updated_at),
      ),
    ),
    element("span.row", actions),
  );
}

function showButton(alert, page) {
  const step = alert.origin?.step ?? alert.first_step;
  return button("Show", () => page.view.showStep(step, namedLayers(alert)[0] ?? ""), {
    "aria-label": `Show alert ${alert.rule} at step ${alert.first_step} in the picture`,
  });
}

/** Return the buttons of an alert, none of one that is over. */
export function actionsOf(alert, page) {
  if (alert.state !== "firing") return [];
  const done = () => page.schedule.mark();
  return [
    alert.acknowledged ? null : button("Acknowledge", () => askToAcknowledge(alert, done)),
    alert.silenced ? null : button("Silence…", () => askToSilence(alert, done)),
  ];
}
