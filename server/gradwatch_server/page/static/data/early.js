// Asks for what a run's page shows first, while the modules that show it are still on their way.

import { parseAddress, viewOf } from "../address.js";
import { askAhead, pathOf, tensorsPath } from "./api.js";
import { healthQuestion, heatQuestion, RUN_CURVES, seriesQuestion } from "./questions.js";

const state = parseAddress(location.search);

if (viewOf(state) === "run") {
  const { run, attempt } = state;
  askAhead(pathOf(...healthQuestion(run, attempt)));
  askAhead(tensorsPath(...heatQuestion(run, attempt, state)));
  askAhead(tensorsPath(...seriesQuestion(run, attempt, state, { columns: RUN_CURVES })));
}
