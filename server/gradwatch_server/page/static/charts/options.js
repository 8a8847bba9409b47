// How uPlot is to draw a chart: its lines and bands, its scales and axes, its cursor.

import { colourOf } from "../theme.js";
import { whole } from "../numbers.js";
import { roomForNames } from "./marks.js";
import { lonely, lonelyPoints, padded, ticks, trimmed } from "./scale.js";

/**
 * Return the options of uPlot.
 *
 * @param {import("./chart.js").ChartData} data
 * @param {{log: boolean, height: number, format: (value: number) => string}} settings
 * @param {{width: number, hooks: Object}} place
 */
export function optionsOf(data, { log, height, format }, { width, hooks }) {
  return {
    ...linesOf(data),
    width,
    height,
    hooks,
    legend: { show: false },
    padding: [12, roomForNames(data.curves), 0, 0],
    scales: {
      x: { time: false, range: (u, min, max) => [min ?? 0, max ?? 1] },
      y: { distr: log ? 3 : 1, range: (u, min, max) => padded(min, max, log) },
    },
    axes: axesOf(log, format),
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false, setScale: false },
    },
  };
}

function linesOf({ curves, width }) {
  const series = [{}];
  const bands = [];
  const edge = { stroke: "transparent", points: { show: false } };
  curves.forEach((curve) => {
    const stroke = colourOf(`--line-${curve.style}`);
    if (width > 1) {
      bands.push({ series: [series.length, series.length + 1], fill: colourOf("--band") });
      series.push({ ...edge }, { ...edge });
    }
    const points = {
      show: (u, index) => lonely(u.data[index]),
      filter: (u, index) => lonelyPoints(u.data[index]),
      size: 4,
      fill: stroke,
    };
    series.push({ stroke, width: 1.5, dash: curve.dash, points });
  });
  return { series, bands };
}

function axesOf(log, format) {
  const axis = {
    stroke: colourOf("--soft"),
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
    grid: { stroke: colourOf("--line"), width: 1 },
    ticks: { show: false },
  };
  const steps = (u, splits) => splits.map((at) => (Number.isInteger(at) ? whole(at) : ""));
  const values = (u, splits) => splits.map((at) => (at === null ? "" : trimmed(format(at))));
  return [
    { ...axis, size: 22, gap: 2, values: steps },
    {
      ...axis,
      size: 54,
      gap: 4,
      values,
      filter: (u, splits) => splits,
      splits: (u, index, min, max) => ticks(min, max, log),
    },
  ];
}
