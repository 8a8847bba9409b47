// What keys do; `?` lists them. They are off while somebody types, and can be switched off.

import { announce } from "./announce.js";
import { button, element } from "./element.js";
import { toggleUtc } from "./time.js";

const OFF = "gradwatch.keys";
const HELP = [
  ["g r", "runs"],
  ["g a", "alerts of this run"],
  ["/", "filter"],
  ["[ ]", "previous and next alert"],
  ["l", "follow the newest steps"],
  ["p", "pause, go on"],
  ["c", "compare with another run"],
  ["u", "UTC or local time"],
  ["y", "copy the address"],
  ["Esc", "one level up"],
  ["t", "as a table"],
  ["f", "one row for each module"],
  ["v", "change or size"],
  ["n N", "next and previous NaN, Inf or alert"],
  ["← ↑ → ↓", "in the heatmap: one cell; with Shift ten"],
  ["PgUp PgDn", "in the heatmap: one module"],
  ["Home End", "in the heatmap: first and last step"],
  ["Enter", "open the layer at this step"],
  ["+ - a d", "zoom and move in time; w s zoom as well"],
  ["0", "all steps"],
];
let prefix = null;

function isTyping(target) {
  return target.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
}

function isOff() {
  try {
    return localStorage.getItem(OFF) === "off";
  } catch {
    return false;
  }
}

/** Listen for the page. */
export function installKeys(page) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]") || isTyping(event.target)) return;
    if (event.key === "?") return void (event.preventDefault(), showKeys());
    if (isOff() && event.key !== "Escape") return;
    if (act(page, event.key)) event.preventDefault();
  });
}

function act(page, key) {
  if (prefix === "g") {
    prefix = null;
    if (key === "r") return (page.go("/"), true);
    if (key === "a") return (page.view.toAlerts?.(), true);
  }
  if (key === "g") {
    prefix = "g";
    setTimeout(() => (prefix = null), 1500);
    return true;
  }
  const acts = {
    "/": () => page.view.focusFilter?.(),
    p: () => page.pause(),
    u: () => (
      announce(toggleUtc() ? "times in UTC" : "local times"),
      page.showFreshness(),
      page.redraw()
    ),
    y: () => copyAddress(),
    Escape: () => up(page),
  };
  if (acts[key]) return (acts[key](), true);
  return page.view.key?.(key) ?? false;
}

function up(page) {
  const { state } = page;
  if (state.layer || state.step !== undefined) page.go({ layer: "", step: undefined });
  else if (state.alert && state.runs.length) page.go({ alert: "" });
  else page.go("/");
}

/** Copy where one is. */
export async function copyAddress() {
  try {
    await navigator.clipboard.writeText(location.href);
    announce("address copied");
  } catch {
    announce("this browser does not let the page copy");
  }
}

/** List the keys. */
export function showKeys() {
  const switched = element("input", { type: "checkbox", id: "keys-on", checked: !isOff() });
  switched.addEventListener("change", () => {
    try {
      localStorage.setItem(OFF, switched.checked ? "on" : "off");
    } catch {
      // a browser that keeps nothing
    }
  });
  const rows = HELP.map(([keys, what]) => [
    element(
      "dt",
      {},
      keys.split(" ").map((key) => [element("kbd", {}, key), " "]),
    ),
    element("dd", {}, what),
  ]);
  const shown = element(
    "dialog",
    { "aria-label": "Keys" },
    element(
      "div",
      { class: "row" },
      element("h2", {}, "Keys"),
      button("Close", () => shown.close(), { class: "push" }),
    ),
    element("dl", { class: "keys" }, rows),
    element("p", {}, element("label", {}, switched, " keys are on")),
  );
  shown.addEventListener("close", () => shown.remove());
  document.body.append(shown);
  shown.showModal();
}
