// What a run's page asks the aggregator for: paths with their parameters.

import { runPath } from "./api.js";

const COLUMNS = 512;
const POINTS = 512;

/** The curves of a run's page, as columns of `/series`. */
export const RUN_CURVES = ["norm", "loss", "lr", "step_time"];

/** Return the parameters that say which steps: the newest, or from one to another. */
export function rangeParameters(state) {
  if (state.from !== undefined || state.to !== undefined) return { from: state.from, to: state.to };
  return { last: state.last ?? COLUMNS };
}

/** Return what to ask for how a run is. */
export function healthQuestion(run, attempt) {
  return [runPath(run, "/health"), { attempt }];
}

/** Return what to ask for the cells of layers and steps. */
export function heatQuestion(run, attempt, state) {
  const column = state.column ?? "l2";
  return [
    runPath(run, "/heatmap"),
    { ...rangeParameters(state), attempt, column, columns: COLUMNS },
  ];
}

/** Return what to ask for curves: columns of the run, or of some layers, blocks or groups. */
export function seriesQuestion(run, attempt, state, { columns, layers, kind = "layer" }) {
  return [
    runPath(run, "/series"),
    { ...rangeParameters(state), attempt, column: columns, [kind]: layers, points: POINTS },
  ];
}
