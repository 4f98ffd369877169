// ServerState: whether the server is ready, and which models it has; asked again and again while the page is open.
import { Changes } from "../lib/changes.js";

const READY_INTERVAL_MS = 5000;
const DOWN_INTERVAL_MS = 1000;
const READ_TIMEOUT_MS = 5000;

export class ServerState {
  constructor(api) {
    this.api = api;
    this.state = "connecting"; // connecting, ready, starting, draining, dead, stopped or unreachable
    this.wasDown = false; // it was ready before, and was down since
    this.models = [];
    this.cards = new Map(); // name of a model -> what /v1/models says of it
    this.changes = new Changes();
    this.timer = 0;
    this.areModelsKnown = false;
    this.isLoading = false;
  }

  start() {
    this.check();
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.check();
    });
    window.addEventListener("online", () => this.check());
  }

  /** Ask now, for example because a request has just failed. */
  async check() {
    clearTimeout(this.timer);
    const state = await readState();
    if (this.state === "ready" && state !== "ready") this.wasDown = true;
    if (state !== "ready") this.areModelsKnown = false;
    if (state !== this.state) {
      this.state = state;
      this.changes.notify();
    }
    if (state === "ready" && !this.areModelsKnown) this.loadModels();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), state === "ready" ? READY_INTERVAL_MS : DOWN_INTERVAL_MS);
  }

  /** Load the list of models; this is the first request that may need a key. */
  async loadModels() {
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      await this.readModels();
    } catch (error) {
      this.areModelsKnown = error.status === 401 || error.status === 403; // the person at the page has no key
    } finally {
      this.isLoading = false;
    }
  }

  /** Return the first model, where none is chosen because the list could not be loaded before. Raises ApiError. */
  async firstModel() {
    if (!this.models.length) await this.readModels();
    return this.models[0] ?? "";
  }

  async readModels() {
    const list = await this.api.json("/v1/models");
    this.models = list.data.map((model) => model.id);
    this.cards = new Map(list.data.map((model) => [model.id, model]));
    this.areModelsKnown = true;
    this.changes.notify();
  }
}

async function readState() {
  try {
    const response = await fetch("readyz", { cache: "no-store", signal: AbortSignal.timeout(READ_TIMEOUT_MS) });
    return (await response.json()).state ?? "unreachable";
  } catch {
    return "unreachable";
  }
}
