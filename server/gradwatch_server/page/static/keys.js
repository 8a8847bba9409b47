// What keys do. They are off while somebody types, and where a person switched them off.

import { announce } from "./announce.js";
import { isOff, showKeys } from "./dialogs/keyhelp.js";
import { toggleUtc } from "./time.js";

let prefix = null;

function isTyping(target) {
  return target.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
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
    if (key === "a") return (toAlerts(page), true);
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
  else if (state.alert && state.run !== undefined) page.go({ alert: "" });
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

function toAlerts(page) {
  if (page.view.toAlerts) page.view.toAlerts();
  else page.go("/?page=alerts");
}
