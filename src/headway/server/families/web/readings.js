// ---- What /metrics says, kept for a while: counters become rates, buckets percentiles.

// A reading: `at` (s, this browser's clock), and for each model and version the samples by
// "name" or "name|value of the label that divides it"; other labels (priority) are summed over.
const DIVIDES = ["le", "reason", "state", "outcome", "finished_reason"];
const SHOWN = /^(headway_|process_(resident|start|cpu)|nv_gpu_memory)/;
const HEAVY = /^headway_(item_(queue|linger|execute)_seconds|batch_rows|batch_padding_ratio|step_sequences|e2e_request.*|request_queue.*)_bucket/;
const MOST_READINGS = 300;  // of one model; of many, less
const ALL = "";  // every model together
const parsed = new Map();  // a series' name and labels, taken apart once

function seriesOf(text) {
  let found = parsed.get(text);
  if (found === undefined) {
    const [, name, inner] = /^(\w+)(?:\{(.*)\})?$/.exec(text) || [];
    found = null;
    if (name && SHOWN.test(name) && !HEAVY.test(name)) {
      const labels = {};
      for (const [, label, value] of (inner || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
        labels[label] = value.replace(/\\n/g, "\n").replace(/\\(["\\])/g, "$1");
      const divides = DIVIDES.find((each) => each in labels);
      const owner = "model" in labels ? `${labels.model} ${labels.version || ""}`.trim() : ALL;
      found = { owner, key: divides ? `${name}|${labels[divides]}` : name };
    }
    if (parsed.size > 20000) parsed.clear();
    parsed.set(text, found);
  }
  return found;
}

function read(text) {
  const models = new Map(), server = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const cut = line.lastIndexOf(" "), series = seriesOf(line.slice(0, cut));
    if (!series) continue;
    if (series.owner && !models.has(series.owner)) models.set(series.owner, new Map());
    const samples = series.owner ? models.get(series.owner) : server;
    samples.set(series.key, (samples.get(series.key) || 0) + Number(line.slice(cut + 1)));
  }
  return { at: performance.now() / 1000, models, server, sums: null };
}

class Readings {
  constructor() { this.all = []; }

  get last() { return this.all[this.all.length - 1]; }

  // False if the server is another one than before: then what was kept is forgotten.
  add(reading) {
    const start = (each) => each.server.get("process_start_time_seconds");
    const isNew = this.all.length > 0 && start(this.last) !== start(reading);
    if (isNew) this.all = [];
    this.all.push(reading);
    const most = Math.max(61, Math.min(MOST_READINGS, 6000 / (reading.models.size || 1)));
    if (this.all.length > most) this.all.shift();
    return !isNew;
  }

  // The samples of a model, or the sums over all.
  static of(reading, model) {
    if (model !== ALL) return reading.models.get(model) || new Map();
    if (!reading.sums) {
      reading.sums = new Map();
      for (const samples of reading.models.values())
        for (const [key, value] of samples) reading.sums.set(key, (reading.sums.get(key) || 0) + value);
    }
    return reading.sums;
  }

  // What happened to a model within the last `seconds`; Infinity: since the server started.
  within(seconds, model) {
    const now = this.last;
    if (seconds === Infinity) {
      const age = (timetable.now || Date.now() / 1000) - now.server.get("process_start_time_seconds");
      return new Span(Readings.of(now, model), new Map(), age);
    }
    const before = this.all.find((each) => each.at >= now.at - seconds - 0.5);
    return new Span(Readings.of(now, model), Readings.of(before, model), now.at - before.at);
  }

  // For each reading but the first: what happened since the one before it.
  spans(model) {
    return this.all.slice(1).map((each, n) => new Span(
      Readings.of(each, model), Readings.of(this.all[n], model), each.at - this.all[n].at));
  }
}

// Between two readings.
class Span {
  constructor(now, before, seconds) { Object.assign(this, { now, before, seconds }); }

  gauge(name) { return this.now.get(name); }

  // null: there is one reading only, so nothing is known.
  count(name) { return this.seconds > 0 ? Math.max(0, (this.now.get(name) || 0) - (this.before.get(name) || 0)) : null; }

  rate(name) { return this.seconds > 0 ? this.count(name) / this.seconds : null; }

  mean(name) { return this.count(`${name}_count`) ? this.count(`${name}_sum`) / this.count(`${name}_count`) : null; }

  // By the value of the label that divides it, e.g. by reason.
  divided(name) {
    const keys = [...this.now.keys()].filter((each) => each.startsWith(`${name}|`));
    return Object.fromEntries(keys.map((each) => [each.slice(name.length + 1), this.count(each)]));
  }

  total(name) { return this.seconds > 0 ? Object.values(this.divided(name)).reduce((sum, each) => sum + each, 0) : null; }

  // As Prometheus' histogram_quantile has it: straight lines between the edges of the buckets.
  quantile(share, name) {
    const buckets = Object.entries(this.divided(`${name}_bucket`)).map(([edge, count]) => [edge === "+Inf" ? Infinity : Number(edge), count]);
    buckets.sort((one, other) => one[0] - other[0]);
    const total = buckets.length ? buckets[buckets.length - 1][1] : 0;
    if (!total) return null;
    let lower = 0, below = 0;
    for (const [edge, count] of buckets) {
      if (count >= share * total)
        return edge === Infinity ? lower : lower + (edge - lower) * (share * total - below) / (count - below || 1);
      [lower, below] = [edge, count];
    }
    return lower;
  }
}

// ---- numbers for people

const number = (value, digits = 3) => (value === null || value === undefined || Number.isNaN(value) ? "–"
  : Math.abs(value) >= 10 ** digits ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits))));
const share = (value) => (value === null || value === undefined ? "–" : `${number(100 * value)} %`);
const seconds = (value) => (value === null || value === undefined ? "–"
  : value >= 1 ? `${number(value)} s` : value >= 1e-3 ? `${number(value * 1e3)} ms` : `${number(value * 1e6)} µs`);
const bytes = (value) => (value === undefined ? "–" : value >= 2 ** 30 ? `${number(value / 2 ** 30)} GiB` : `${number(value / 2 ** 20)} MiB`);
