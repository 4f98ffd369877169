// LiveSource: the events of /admin/live, or of one replica behind a router, for one view. It connects again when the
// stream is cut, and rests while the page is hidden, so that the server collects nothing for a page that is not looked
// at.
import { useEffect, useMemo, useRef, useState } from "../lib/html.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;
const STEADY_MS = 5000; // a stream that lasted this long was no failure of connecting
const REDRAW_MS = 500; // a view moves on in time also without events, which are sent only for changes
const SCHEMA = 1; // version of the events that these views read
const DENIED = new Set([401, 403]);

export class LiveSource {
  constructor(api, onEvent, onChange, path = "/admin/live") {
    this.api = api;
    this.path = path;
    this.onEvent = onEvent;
    this.onChange = onChange;
    this.state = "connecting"; // connecting, open, absent (no admin key on the server), denied, outdated or paused
    this.message = "";
    this.abort = null;
    this.isStopped = false;
    this.current = null;
    this.onVisibility = () => (document.hidden ? this.pause() : this.resume());
  }

  start() {
    document.addEventListener("visibilitychange", this.onVisibility);
    this.run();
  }

  stop() {
    this.isStopped = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.abort?.abort();
  }

  pause() {
    if (!["open", "connecting"].includes(this.state)) return;
    this.set("paused");
    this.abort?.abort();
  }

  /** Connect, after a pause or because the person at the page asks for it. */
  resume() {
    if (["paused", "denied", "absent", "outdated"].includes(this.state)) this.run();
  }

  async run() {
    const run = (this.current = {}); // a later run ends this one
    const isOver = () => this.isStopped || this.current !== run || this.state === "paused";
    let wait = FIRST_WAIT_MS;
    let message = "";
    if (document.hidden) return this.set("paused");
    this.set("connecting");
    while (!isOver()) {
      let atLeast = 0;
      const began = performance.now();
      const abort = (this.abort = new AbortController());
      try {
        for await (const { event, data } of this.api.events(this.path, { admin: true, signal: abort.signal })) {
          const value = JSON.parse(data);
          if (event === "hello" && value.schema !== SCHEMA) {
            abort.abort();
            return this.set("outdated");
          }
          this.take(event, value);
          if (this.state !== "open") this.set("open");
          else this.onChange();
          message = "";
        }
      } catch (error) {
        if (isOver()) return;
        message = error instanceof TypeError ? "The connection to the server was lost." : error.message;
        atLeast = 1000 * (error.retryAfter ?? 0);
        if (error.status === 404) return this.set("absent", error.message);
        if (DENIED.has(error.status)) return this.set("denied", error.message);
      }
      if (isOver()) return;
      if (performance.now() - began > STEADY_MS) wait = FIRST_WAIT_MS;
      this.set("connecting", message);
      const pause = Math.max(atLeast, wait * (0.5 + Math.random() / 2)); // not all pages at the same moment
      await new Promise((resolve) => setTimeout(resolve, pause));
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  take(event, value) {
    try {
      this.onEvent(event, value);
    } catch {
      throw new Error("The page could not read the server's data.");
    }
  }

  set(state, message = "") {
    this.state = state;
    this.message = message;
    this.onChange();
  }
}

/** Return the model that the events go to, and the source; the view renders again at most once for each frame. */
export function useLive(api, makeModel, path) {
  const [, setTick] = useState(0);
  const model = useMemo(makeModel, []);
  const source = useRef(null);
  const frame = useRef(0);
  const redraw = () => {
    if (frame.current) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      setTick((tick) => tick + 1);
    });
  };
  source.current ??= new LiveSource(api, (name, data) => model.onEvent(name, data), redraw, path);
  useEffect(() => {
    source.current.start();
    const timer = setInterval(redraw, REDRAW_MS);
    return () => {
      clearInterval(timer);
      source.current.stop();
    };
  }, []);
  return { model, source: source.current };
}
