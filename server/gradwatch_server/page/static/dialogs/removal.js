// Deletes a run. What is deleted does not come back: its name has to be typed.

import { pathOf, problemOf, runPath, send } from "../data/api.js";
import { button, element, nameOf } from "../element.js";
import { openDialog } from "./dialog.js";

/** Ask for the name of a run that is over, and delete it. */
export function askToDelete(run, page) {
  const name = element("input", { required: true, autocomplete: "off" });
  const problem = element("p.is-critical", { role: "alert" });
  const finish = async (event) => {
    event.preventDefault();
    try {
      await send("DELETE", pathOf(runPath(run), { confirm: name.value }));
      shown.close();
      page.go("/");
    } catch (error) {
      problem.textContent = problemOf(error);
    }
  };
  const shown = openDialog(
    "Delete this run",
    element(
      "form.lines",
      { onsubmit: finish },
      element("h2", "Delete ", nameOf(run)),
      element("p", "Its curves, records and alerts are deleted for good."),
      element("label", "Its name once more", name),
      problem,
      element(
        "p.row",
        button("Delete", null, { type: "submit" }),
        button("Cancel", () => shown.close()),
      ),
    ),
  );
}
