// FleetModel: what the fleet view shows, made of the events of a router.
const NUM_REQUESTS = 200;
const NUM_TRANSITIONS = 100;
const RATE_SECONDS = 3; // shortest time over which rates are computed

export class FleetModel {
  constructor(now = () => performance.now() / 1000) {
    this.now = now;
    this.clear();
  }

  clear() {
    this.hello = null;
    this.router = null;
    this.replicas = [];
    this.openRequests = [];
    this.requests = [];
    this.transitions = [];
    this.fleet = null;
    this.marks = new Map(); // replica id -> earlier counters, from which rates are made
    this.rates = new Map(); // replica id -> {tokens, hits}
  }

  onEvent(name, data) {
    if (name === "hello") {
      this.clear();
      this.hello = data;
    } else if (name === "router") this.router = data;
    else if (name === "replicas") this.takeReplicas(data);
    else if (name === "open_requests") this.openRequests = data;
    else if (name === "requests") this.requests = [...this.requests, ...data].slice(-NUM_REQUESTS);
    else if (name === "transitions") this.transitions = [...this.transitions, ...data].slice(-NUM_TRANSITIONS);
    else if (name === "fleet") this.fleet = data;
  }

  /** Requests that have ended, and open ones; one that has just ended may still be in the last list of open ones. */
  get allRequests() {
    const ended = new Set(this.requests.map(({ request_id: id, at_seconds: at }) => `${id}/${at}`));
    const open = this.openRequests.filter(({ request_id: id, at_seconds: at }) => !ended.has(`${id}/${at}`));
    return [...this.requests, ...open];
  }

  takeReplicas(replicas) {
    const at = this.now();
    for (const { replica_id: id, load } of replicas) {
      if (!load) continue;
      const mark = this.marks.get(id);
      const isNew = !mark || load.output_tokens < mark.load.output_tokens || load.incarnation !== mark.load.incarnation;
      if (isNew) {
        this.marks.set(id, { at, load });
        this.rates.delete(id);
      }
      else if (at - mark.at >= RATE_SECONDS) {
        this.rates.set(id, (load.output_tokens - mark.load.output_tokens) / (at - mark.at));
        this.marks.set(id, { at, load });
      }
    }
    const known = new Set(replicas.map(({ replica_id: id }) => id));
    for (const map of [this.marks, this.rates]) for (const id of map.keys()) if (!known.has(id)) map.delete(id);
    this.replicas = replicas;
  }
}
