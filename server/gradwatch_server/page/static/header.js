// The line above every page: where one is, how fresh it is, and the menu.

import { formatAddress } from "./address.js";
import { getJson } from "./data/api.js";
import { button, element, fill, nameOf } from "./element.js";
import { showKeys } from "./dialogs/keyhelp.js";
import { whole } from "./numbers.js";
import { statusOf } from "./status.js";
import { toggleTheme } from "./theme.js";
import { SEVERITIES } from "./words.js";

const MOST = 100; // alerts that are counted

/** The head of the page. */
export class Header {
  constructor(page) {
    this.page = page;
    this.root = document.getElementById("header");
    this.where = element("nav.row.where", { "aria-label": "Where this is" });
    this.controls = element("div.row");
    this.firing = element("a.firing", { href: "/?page=alerts&status=firing", hidden: true });
    this.freshness = element("span.freshness.push");
    fill(
      this.root,
      this.where,
      this.controls,
      this.firing,
      this.freshness,
      button("?", showKeys, { class: "plain", title: "Keys (?)", "aria-label": "Keys" }),
      button("◑", () => this.theme(), {
        class: "plain",
        title: "Light or dark",
        "aria-label": "Light or dark",
      }),
      this.menu(),
    );
  }

  theme() {
    toggleTheme();
    this.page.redraw();
  }

  menu() {
    const items = [
      ["/", "Runs"],
      ["/?page=alerts", "Alerts"],
      ["/?page=silences", "Silences"],
      ["/?page=rules", "Rules"],
    ].map(([href, text]) => element("a", { href }, text));
    const menu = element(
      "details.menu",
      element("summary", { "aria-label": "Menu" }, "☰"),
      element("div.items", items),
    );
    menu.addEventListener("keydown", (event) => event.key === "Escape" && (menu.open = false));
    document.addEventListener("click", (event) => {
      if (event.target.closest("summary")?.parentElement !== menu) menu.open = false;
    });
    return menu;
  }

  draw() {
    const { state, view } = this.page;
    const parts = [element("a.brand", { href: "/" }, "gradwatch")];
    const add = (part) =>
      parts.push(element("span.separator", { "aria-hidden": "true" }, "▸"), part);
    if (state.page) add(element("span", state.page));
    const { run, attempt } = state;
    if (run !== undefined)
      add(element("a", { href: formatAddress({ run, attempt }) }, nameOf(run, 60)));
    if (state.alert) add(element("span", "alert"));
    fill(this.where, parts);
    fill(this.controls, view?.controls ?? []);
  }

  /** Show how many alerts fire in runs that live, with the mark of the worst. */
  async countFiring() {
    const firing = await getJson("/alerts/latest", { firing: true, limit: MOST });
    const worst = SEVERITIES.find((one) => firing.some(({ severity }) => severity === one));
    this.firing.hidden = !firing.length;
    if (!firing.length) return;
    const more = firing.length < MOST ? "" : " or more";
    fill(this.firing, statusOf(worst, `${whole(firing.length)}${more} firing`));
  }

  showFreshness({ text, kind }) {
    if (this.freshness.textContent !== text) this.freshness.textContent = text;
    if (this.freshness.dataset.kind !== kind) this.freshness.dataset.kind = kind;
  }
}
