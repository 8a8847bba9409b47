// A run as a row of the list. Its link stays the same element as long as the run is there, so that
// neither the keyboard nor a click loses it.

import { formatAddress } from "../address.js";
import { drawSparkline, sparkline } from "../charts/sparkline.js";
import { element, fill, nameOf, printable, setText } from "../element.js";
import { count, scoreText, seconds, short, whole } from "../numbers.js";
import { statusOf } from "../status.js";
import { now, span } from "../time.js";

/** Name and class of each column. */
export const HEADS = [
  ["status · phase", ""],
  ["run", ""],
  ["step", "number"],
  ["loss", "number wide"],
  ["s/step", "number wide"],
  ["gradient norm", "wide"],
  ["score", "number wide"],
  ["ranks", "number wide"],
  ["alerts", ""],
  ["heard", "number soft"],
];

const LETTERS = [
  ["critical", "c"],
  ["warning", "w"],
  ["info", "i"],
];

/** The row of one run. */
export class RunRow {
  constructor(run) {
    this.cells = HEADS.map(([, name]) => element("td", { class: name }));
    this.attempt = element("span.soft");
    this.reason = element("div.soft.small");
    this.spark = sparkline([], "");
    this.norm = element("span");
    fill(
      this.cells[1],
      element("a.whole", { href: formatAddress({ run }) }, nameOf(run, 80)),
      this.attempt,
      this.reason,
    );
    fill(this.cells[5], element("span.sparkcell", this.spark, this.norm));
    this.element = element("tr.link", this.cells);
    this.text = "";
  }

  /** Show the run as it is; @param {any} row of `/runs` */
  show(row) {
    const text = JSON.stringify(row);
    if (text === this.text) return;
    this.text = text;
    this.row = row;
    const [status, , step, loss, time, , score, ranks, alerts] = this.cells;
    fill(status, statusOf(row.status, row.phase));
    setText(this.attempt, row.attempt > 1 ? ` attempt ${row.attempt}` : "");
    setText(this.reason, printable(row.reason));
    setText(loss, row.loss === null ? "" : short(row.loss));
    setText(step, row.step === null ? "no step" : whole(row.step));
    setText(time, row.step_time_s == null ? "" : short(row.step_time_s));
    time.title = row.step_time_s == null ? "" : seconds(row.step_time_s);
    setText(score, row.score === null ? "" : scoreText(row.score));
    setText(ranks, `${row.ranks}/${row.world}`);
    fill(alerts, alertsOf(row));
    this.draw();
    this.age();
  }

  /** Draw the curve, in the colours of now. */
  draw() {
    const { spark, run } = this.row;
    this.spark.parentNode.hidden = !spark;
    if (!spark) return;
    drawSparkline(this.spark, spark, `gradient norm of ${run}`);
    setText(this.norm, short(this.row.norm));
  }

  /** Say how long ago it was heard of. */
  age() {
    setText(this.cells[9], span((now() - Date.parse(this.row.updated_at)) / 1000));
  }
}

function alertsOf(row) {
  return LETTERS.filter(([severity]) => row.alerts?.[severity]).map(([severity, letter]) =>
    element(
      "span",
      { class: `is-${severity} nowrap`, title: count(row.alerts[severity], severity) },
      `${row.alerts[severity]}${letter} `,
    ),
  );
}
