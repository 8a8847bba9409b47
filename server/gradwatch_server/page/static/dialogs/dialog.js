// A dialog over the page, which is gone when it is closed.

import { element } from "../element.js";

/** Open a dialog. */
export function openDialog(title, ...content) {
  const shown = element("dialog", { "aria-label": title }, content);
  shown.addEventListener("close", () => shown.remove());
  document.body.append(shown);
  shown.showModal();
  return shown;
}
