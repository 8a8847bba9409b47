// What the pictures of an attempt are drawn from: asked for once, then only what is new of it.

import { getJson, getTensors, runPath } from "./api.js";
import { Cells } from "../heatmap/cells.js";
import { heatQuestion, rangeParameters, seriesQuestion } from "./questions.js";

const SELDOM_MS = 60000;

/** Tell whether what is shown are the newest steps, whichever these are. */
export function isFollowing(state) {
  return state.from === undefined && state.to === undefined;
}

// Whether there is something new: of steps that are all past seldom, by a late record or a restart.
function isDue({ to }, lastStep, asked_ms) {
  return to === undefined || to > lastStep || performance.now() - asked_ms > SELDOM_MS;
}

const numberOf = (text) => (text === "null" ? -1 : Number(text));

// Whether an answer adds to one before it. A change of past steps does not; a lower revision or
// last step is of another run with the same name: the first one was deleted.
function continues(before, now, names) {
  const [old_step, new_step] = [numberOf(before.last_step), numberOf(now.last_step)];
  const [old_revision, new_revision] = [Number(before.revision), Number(now.revision)];
  const isPast = new_revision !== old_revision && new_step === old_step;
  return (
    names.every((name) => now[name] === before[name]) &&
    !isPast &&
    new_revision >= old_revision &&
    new_step >= old_step
  );
}

// How many buckets are kept while new ones come. The newest steps with a record may lie far apart:
// then there are more buckets than steps that were asked for.
function mostBuckets(last = Infinity, width, given) {
  return Math.max(Math.ceil(last / width), given);
}

/** Cells of one attempt and column. */
export class HeatSource {
  constructor(run, attempt) {
    this.run = run;
    this.attempt = attempt;
    this.cells = null;
    this.key = null;
  }

  /** Bring the cells up to date; return them, null while there are none. */
  async load(state) {
    const key = JSON.stringify([rangeParameters(state), state.column ?? "l2"]);
    const [path, parameters] = heatQuestion(this.run, this.attempt, state);
    if (this.cells?.columns && this.key === key) {
      const after = numberOf(this.takes.last_step);
      if (!isDue(state, after, this.asked_ms)) return this.cells;
      const answer = await getTensors(path, { ...parameters, after });
      if (this.continues(answer.metadata)) {
        this.remember(answer.metadata);
        if (answer.arrays.get("step").data.length) this.cells.take(answer);
        return this.cells;
      }
    }
    const answer = await getTensors(path, parameters);
    const names = JSON.parse(answer.metadata.layers ?? "[]");
    this.cells = new Cells(answer, names);
    this.cells.most = mostBuckets(parameters.last, this.cells.width, this.cells.columns);
    this.key = key;
    this.remember(answer.metadata);
    return this.cells;
  }

  remember(metadata) {
    this.asked_ms = performance.now();
    this.takes = metadata;
  }

  // Another process, epoch, attempt, list of layers or width: all of it is asked for anew; so it is
  // where a late record changed what is past.
  continues(metadata) {
    return continues(this.takes, metadata, ["boot", "epoch", "attempt", "manifest", "width"]);
  }
}

/** Curves of one attempt: named columns of the run, or of some layers. */
export class SeriesSource {
  /**
   * @param {string} run
   * @param {number|undefined} attempt
   * @param {{columns: string[], layers?: string[], kind?: "layer"|"block"|"group"}} wanted `kind`
   *   says what is named by `layers`
   */
  constructor(run, attempt, { columns, layers, kind = "layer" }) {
    this.run = run;
    this.attempt = attempt;
    this.columns = columns;
    this.layers = layers;
    this.kind = kind;
    this.key = null;
    this.curves = null;
  }

  /** Return the curves; each is as `Chart` takes it. While steps are followed only new ones are asked for. */
  async load(state) {
    const key = JSON.stringify(rangeParameters(state));
    const [path, asked] = seriesQuestion(this.run, this.attempt, state, this);
    if (this.curves && this.key === key && this.curves.x.length) {
      if (!isDue(state, this.curves.lastStep, this.asked_ms)) return this.curves;
      this.asked_ms = performance.now();
      const more = new Curves(await getTensors(path, { ...asked, after: this.curves.lastStep }));
      if (this.curves.isContinuedBy(more))
        return (this.curves = this.curves.joined(more, this.most));
    }
    this.asked_ms = performance.now();
    this.curves = new Curves(await getTensors(path, asked));
    this.most = mostBuckets(asked.last, this.curves.width, this.curves.x.length);
    this.key = key;
    return this.curves;
  }
}

const COUNTS = ["nan", "inf", "zero"];
const VALUES = ["last", "min", "max"];

/** An answer of `/series`. */
export class Curves {
  constructor({ arrays, metadata }) {
    this.metadata = metadata;
    this.width = Number(metadata.width ?? 1);
    this.x = arrays.get("step").data;
    this.lastStep = numberOf(metadata.last_step);
    this.found = new Map();
    JSON.parse(metadata.series ?? "[]").forEach((label, number) => {
      const curve = { label: label.column };
      for (const name of [...VALUES, ...COUNTS])
        curve[name] = arrays.get(`${number}.${name}`)?.data;
      const name = label.layer ?? label.block ?? label.group;
      this.found.set(keyOf(label.column, name), withBad(curve));
    });
  }

  /** Return the curve of a column, of a layer, block or group if one is named; else undefined. */
  of(column, name) {
    return this.found.get(keyOf(column, name));
  }

  /** Return the steps that are shown. */
  range(state) {
    const first = this.x.length ? this.x[0] : 0;
    const last = this.x.length ? this.x[this.x.length - 1] + this.width - 1 : 1;
    return [state.from ?? first, state.to ?? last];
  }

  /** Tell whether an answer goes on where this one ends. */
  isContinuedBy({ metadata }) {
    return continues(this.metadata, metadata, ["boot", "epoch", "attempt", "width"]);
  }

  /** Return these with further buckets, `most` of them; from the first of those on they replace. */
  joined(more, most) {
    const first = more.x.length ? more.x[0] : Infinity;
    const kept = this.x.findLastIndex((step) => step < first) + 1;
    const begin = Math.max(0, kept + more.x.length - most);
    const join = (old, added, size) => {
      if (!old && !added) return undefined;
      const made = new Float64Array(kept - begin + size);
      if (old) made.set(old.subarray(begin, kept));
      if (added) made.set(added, kept - begin);
      return made;
    };
    const made = Object.assign(Object.create(Curves.prototype), this, {
      metadata: more.metadata,
      lastStep: more.lastStep,
      found: new Map(),
    });
    made.x = join(this.x, more.x, more.x.length);
    for (const [key, curve] of this.found) {
      const added = more.found.get(key) ?? {};
      const both = { label: curve.label };
      for (const name of [...VALUES, ...COUNTS])
        both[name] = join(curve[name], added[name], more.x.length);
      made.found.set(key, withBad(both));
    }
    return made;
  }
}

function keyOf(column, name) {
  return name === undefined ? column : `${name}\0${column}`;
}

// How many steps of each bucket were not finite; counts that are all zero are left out of answers.
function withBad(curve) {
  const { nan, inf } = curve;
  return { ...curve, bad: nan && inf ? nan.map((value, at) => value + inf[at]) : (nan ?? inf) };
}

/** Return one step with the numbers of some layers, or of the worst ones. */
export function loadFrame(run, attempt, step, layers) {
  return getJson(runPath(run, `/frames/${step}`), {
    attempt,
    layer: layers,
    worst: layers ? undefined : 20,
  });
}
