// BatchModel: what the batch view shows, made of the events of a server. Each row keeps its last seconds in columns.
export const COLUMN_MS = 200;
export const NUM_COLUMNS = 40;
const MAX_GAP_COLUMNS = 5; // longest time between two snapshots that is drawn as one
const NUM_ENDED = 8;
const MIN_RATE_SECONDS = 0.5; // between two samples, which are about a second apart
export const NUM_STEPS = 64;
const NUM_SAMPLES = 300;
const NUM_REQUESTS = 200;
const FADE_COLUMNS = 12; // columns for which a row stays after its request has ended

export class BatchModel {
  constructor(now = () => performance.now()) {
    this.now = now;
    this.clear();
  }

  clear() {
    this.hello = null;
    this.server = null;
    this.batch = null;
    this.rows = [];
    this.flows = new Map(); // id of a row -> Flow
    this.steps = [];
    this.samples = [];
    this.requests = [];
    this.history = [[]];
    this.replicas = []; // of a router
  }

  get column() {
    return Math.floor(this.now() / COLUMN_MS);
  }

  onEvent(name, data) {
    if (name === "hello") {
      this.clear();
      this.hello = data;
    } else if (name === "server") this.server = data;
    else if (name === "batch") this.takeBatch(data);
    else if (name === "history") this.takeHistory(data);
    else if (name === "replicas") this.replicas = data;
    else if (name === "requests") this.requests = [...this.requests, ...data].slice(-NUM_REQUESTS);
  }

  takeBatch(batch) {
    const names = this.hello.row_fields;
    const rows = batch.rows.map((values) => Object.fromEntries(names.map((name, index) => [name, values[index]])));
    const column = this.column;
    const isRestarted = this.batch !== null && batch.num_steps < this.batch.num_steps;
    if (isRestarted) this.steps = [];
    for (const row of rows) {
      row.id = `${row.request_id}/${row.choice}/${row.key}`;
      let flow = this.flows.get(row.id);
      if (!flow) this.flows.set(row.id, (flow = new Flow(row)));
      flow.take(row, column);
    }
    this.batch = batch;
    this.rows = rows;
    for (const [id, { ended }] of this.flows) { // also while nothing is drawn
      if (ended !== null && column - ended > FADE_COLUMNS) this.flows.delete(id);
    }
    const open = new Set(rows.map((row) => row.id));
    for (const [id, flow] of this.flows) if (!open.has(id)) flow.ended ??= column;
    this.takeSteps(batch.recent_steps);
  }

  takeSteps(steps) {
    if (steps.length && this.steps.length && steps.at(-1)[0] < this.steps.at(-1).id) this.steps = []; // a new engine
    const last = this.steps.length ? this.steps.at(-1).id : -1;
    for (const [id, duration, tokens, prefills, decodes] of steps) {
      const isAfterGap = this.steps.length > 0 && id > this.steps.at(-1).id + 1; // steps between are not known
      if (id > last) this.steps.push({ id, duration, tokens, prefills, decodes, isAfterGap });
    }
    this.steps = this.steps.slice(-NUM_STEPS);
  }

  takeHistory(samples) {
    const names = this.hello.history_fields;
    for (const values of samples) {
      this.samples.push(Object.fromEntries(names.map((name, index) => [name, values[index]])));
    }
    this.samples = this.samples.slice(-NUM_SAMPLES);
    const before = (sample, index) => (index ? sample.at_seconds - this.samples[index - 1].at_seconds : 1);
    const all = this.samples.map((sample, index) => ({ ...sample, seconds: before(sample, index) }));
    const column = (value) => all.map(value);
    const at = column((sample) => sample.at_seconds);
    const perStep = (value) => (sample) => (sample.num_steps ? value(sample) / sample.num_steps : null);
    const perSecond = (value) => (sample) => (
      sample.seconds < MIN_RATE_SECONDS ? null : value(sample) / sample.seconds);
    this.history = {
      step: [at, column(perStep((sample) => sample.busy_ms))],
      budget: [at, column(perStep((sample) => sample.prefill_tokens + sample.decode_tokens)),
        column(perStep((sample) => sample.num_steps * sample.max_batch_tokens))],
      sequences: [at, column((sample) => sample.num_running), column((sample) => sample.num_waiting)],
      tokens: [at, column(perSecond((sample) => sample.prefill_tokens)),
        column(perSecond((sample) => sample.decode_tokens))],
    };
  }

  /** Why the batch is not that of now, or "". */
  get stale() {
    const why = this.server?.batch_stale_reason;
    return why ? `Not live: ${why}` : "";
  }

  /** The state of a server that is not ready, though its batch is that of now, or "". */
  get note() {
    const { state = "ready", reason = "" } = this.server ?? {};
    return state === "ready" ? "" : `Live; the server is ${state}${reason ? ` (${reason})` : ""}`;
  }

  /** Flows in the order of the rows, those that have ended at the end. */
  get shown() {
    for (const [id, { ended }] of this.flows) {
      if (ended !== null && this.column - ended > FADE_COLUMNS) this.flows.delete(id);
    }
    const ended = [...this.flows.values()].filter((flow) => flow.ended !== null);
    ended.sort((one, other) => other.ended - one.ended);
    return [...this.rows.map((row) => this.flows.get(row.id)), ...ended.slice(0, NUM_ENDED)];
  }
}

/** The last columns of one row: state, prompt tokens computed and output tokens in each. */
class Flow {
  constructor(row) {
    this.row = row;
    this.ended = null;
    this.columns = new Map(); // column -> {state, prefill, decode, from}: `from` is the first column of the same time
    this.lastColumn = null;
    this.isNew = true;
  }

  take(row, column) {
    const last = this.row;
    const done = (each) => Math.min(Math.max(each.computed_tokens, each.cached_tokens), each.prompt_tokens);
    const isFresh = this.isNew && row.age_seconds < 0.5;
    const prefill = this.isNew ? (isFresh ? done(row) - row.cached_tokens : 0) : Math.max(0, done(row) - done(last));
    const decode = this.isNew ? (isFresh ? row.output_tokens : 0) : Math.max(0, row.output_tokens - last.output_tokens);
    this.isNew = false;
    this.row = row;
    this.ended = null;
    const before = this.columns.get(column) ?? { prefill: 0, decode: 0 };
    const isGap = this.lastColumn !== null && column - this.lastColumn <= MAX_GAP_COLUMNS;
    this.columns.set(column, {
      state: row.state, prefill: before.prefill + prefill, decode: before.decode + decode,
      from: before.from ?? (isGap ? this.lastColumn + 1 : column),
    });
    this.lastColumn = column;
    for (const old of this.columns.keys()) {
      if (old > column - NUM_COLUMNS) break;
      this.columns.delete(old);
    }
  }
}
