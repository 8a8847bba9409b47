// What the pictures of an attempt are drawn from: asked for once, then only what is new of it.

import { getJson, getTensors, runPath } from "./api.js";
import { Cells } from "../heatmap/cells.js";
import { heatQuestion, rangeParameters, seriesQuestion } from "./questions.js";

const SELDOM_MS = 60000;

/** Tell whether what is shown are the newest steps, whichever these are. */
export function isFollowing(state) {
  return state.from === undefined && state.to === undefined;
}

const numberOf = (text) => (text === "null" ? -1 : Number(text));

/**
 * Tell whether an answer adds to one before it. A change of past steps does not; nor does another
 * process, epoch, attempt, list of layers or width; a lower revision or last step is of another run
 * with the same name: the first one was deleted.
 */
export function continues(before, now) {
  const [old_step, new_step] = [numberOf(before.last_step), numberOf(now.last_step)];
  const [old_revision, new_revision] = [Number(before.revision), Number(now.revision)];
  const isPast = new_revision !== old_revision && new_step === old_step;
  return (
    ["boot", "epoch", "attempt", "manifest", "width"].every((name) => now[name] === before[name]) &&
    !isPast &&
    new_revision >= old_revision &&
    new_step >= old_step
  );
}

// What is asked for as a whole once, and then what follows it.
class Source {
  constructor(run, attempt) {
    this.run = run;
    this.attempt = attempt;
    this.found = null;
  }

  /** Return it as it is now, brought up to date. */
  async load(state) {
    const [path, asked] = this.question(state);
    const key = JSON.stringify(asked);
    if (this.found?.columns && this.key === key) {
      const after = numberOf(this.metadata.last_step);
      // Of steps that are all past there is seldom news, by a late record or a restart.
      const isPast = state.to !== undefined && state.to <= after;
      if (isPast && performance.now() - this.asked_ms < SELDOM_MS) return this.found;
      const more = await this.ask(path, { ...asked, after });
      if (continues(this.metadata, more.metadata)) {
        this.metadata = more.metadata;
        return (this.found = this.found.joined(more));
      }
    }
    const answer = await this.ask(path, asked);
    this.key = key;
    this.metadata = answer.metadata;
    this.found = this.read(answer);
    // The newest steps with a record may lie far apart: then there are more buckets than were asked.
    const most = Math.ceil((asked.last ?? Infinity) / this.found.width);
    this.found.most = Math.max(most, this.found.columns);
    return this.found;
  }

  async ask(path, parameters) {
    const answer = await getTensors(path, parameters);
    this.asked_ms = performance.now();
    return answer;
  }
}

/** Cells of one attempt and column. */
export class HeatSource extends Source {
  question(state) {
    return heatQuestion(this.run, this.attempt, state);
  }

  read(answer) {
    return new Cells(answer, JSON.parse(answer.metadata.layers ?? "[]"));
  }
}

/** Curves of one attempt: named columns of the run, or of some layers. */
export class SeriesSource extends Source {
  /**
   * @param {string} run
   * @param {number|undefined} attempt
   * @param {{columns: string[], layers?: string[], kind?: "layer"|"block"|"group"}} wanted `kind`
   *   says what is named by `layers`
   */
  constructor(run, attempt, wanted) {
    super(run, attempt);
    this.wanted = wanted;
  }

  question(state) {
    return seriesQuestion(this.run, this.attempt, state, this.wanted);
  }

  read(answer) {
    return new Curves(answer);
  }
}

const COUNTS = ["nan", "inf", "zero"];
const VALUES = ["last", "min", "max"];

/** An answer of `/series`. */
export class Curves {
  constructor({ arrays, metadata }) {
    this.width = Number(metadata.width ?? 1);
    this.x = arrays.get("step").data;
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

  get columns() {
    return this.x.length;
  }

  /** Return these with further buckets; from the first of those on they replace. */
  joined(answer) {
    const more = new Curves(answer);
    const first = more.x.length ? more.x[0] : Infinity;
    const kept = this.x.findLastIndex((step) => step < first) + 1;
    const begin = Math.max(0, kept + more.x.length - this.most);
    const join = (old, added, size) => {
      if (!old && !added) return undefined;
      const made = new Float64Array(kept - begin + size);
      if (old) made.set(old.subarray(begin, kept));
      if (added) made.set(added, kept - begin);
      return made;
    };
    const made = Object.assign(Object.create(Curves.prototype), this, { found: new Map() });
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
