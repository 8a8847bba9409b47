// What stands above everything: nobody answers, or a token is needed.

import { setToken } from "./data/api.js";
import { button, element, fill, setText } from "./element.js";
import { clock, span } from "./time.js";

const place = document.getElementById("notice");
const [since, next] = [element("p"), element("span")];
let shown = null;
let hasTried = false; // a token was given, and nothing was answered since

/** Say that nobody answers, since when, and when the next try is. */
export function tellGone({ isGone, heard_ms, heard_at }, stream, retry) {
  if (shown === "token") return;
  if (!isGone) return shown === "gone" ? clear() : undefined;
  if (shown !== "gone") {
    shown = "gone";
    fill(
      place,
      element(
        "section",
        { "aria-label": "The aggregator does not answer" },
        element("p.title", `The aggregator at ${location.host} does not answer.`),
        since,
        element(
          "p",
          "Training does not wait for it: records are kept there and come later. Is it running? ",
          element("code", "gradwatch serve"),
        ),
        element("p.row", next, button("Try now", retry)),
      ),
    );
  }
  const ago = span((performance.now() - heard_at) / 1000);
  const last =
    heard_ms !== null && `Last heard ${clock(heard_ms)} (${ago} ago). What you see is from then.`;
  setText(since, last || "It has not answered yet.");
  const wait_s = Math.ceil((stream.retry_ms - performance.now()) / 1000);
  setText(next, wait_s > 0 ? `Trying again in ${wait_s} s.` : "Trying now.");
}

/** Ask for a token, and why; `given` is called when there is one. What was drawn stays. */
export function tellToken(problem, given) {
  if (shown === "token") return;
  shown = "token";
  const field = element("input", {
    type: "password",
    autocomplete: "off",
    "aria-label": "Token",
    required: true,
    size: "36",
  });
  const keep = element("input", { type: "checkbox", id: "keep-token" });
  const submit = (event) => {
    event.preventDefault();
    hasTried = true;
    setToken(field.value.trim(), keep.checked);
    given();
  };
  fill(
    place,
    element(
      "section",
      { "aria-label": "A token is needed" },
      element("p.title", "This aggregator asks for a token, or the one you had has changed."),
      element(
        "p.why",
        hasTried
          ? `Not this one: ${problem.message}`
          : "The one to read is enough to look; the one to write also acknowledges.",
      ),
      element(
        "form.row",
        { onsubmit: submit },
        field,
        button("Use it", null, { type: "submit" }),
        element("label", { for: "keep-token" }, keep, " keep on this device"),
      ),
    ),
  );
  field.focus();
}

/** A token was given: it is not asked for any more. */
export function clearToken() {
  if (shown === "token") clear();
}

/** Something was answered: the token that was given is a good one. */
export function forgetTried() {
  hasTried = false;
}

function clear() {
  shown = null;
  fill(place);
}
