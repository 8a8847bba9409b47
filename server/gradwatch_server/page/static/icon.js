// The icon of the tab: one file for each status.

const link = document.getElementById("favicon");
const base = document.querySelector("meta[name=gradwatch-static]").content;

/** Show a status in the tab. */
export function setIcon(status) {
  const href = `${base}/icons/${status}.svg`;
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
}
