// A dialog over the page, which is gone when it is closed.

import { button, element } from "../element.js";

/** Open a dialog. */
export function openDialog(title, ...content) {
  const shown = element("dialog", { "aria-label": title }, content);
  shown.addEventListener("close", () => shown.remove());
  document.body.append(shown);
  shown.showModal();
  return shown;
}

/** Return the head of a dialog that only shows something: its title, and a button that closes it. */
export function dialogHead(title) {
  const close = button("Close", () => close.closest("dialog").close(), { class: "push" });
  return element("div", { class: "row" }, element("h2", {}, title), close);
}
