// LiveSource: the events of /admin/live for one view. It connects again when the stream is cut, and rests while the
// page is hidden, so that the server collects nothing for a page that is not looked at.
import { useEffect, useMemo, useRef, useState } from "../lib/html.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;
const REDRAW_MS = 500; // a view moves on in time also without events, which are sent only for changes
const DENIED = new Set([401, 403]);

export class LiveSource {
  constructor(api, onEvent, onChange) {
    this.api = api;
    this.onEvent = onEvent;
    this.onChange = onChange;
    this.state = "connecting"; // connecting, open, absent (no admin key on the server), denied or paused
    this.message = "";
    this.abort = null;
    this.isStopped = false;
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
    if (this.state !== "open") return;
    this.set("paused");
    this.abort?.abort();
  }

  /** Connect, after a pause or because the person at the page asks for it. */
  resume() {
    if (this.state === "paused" || this.state === "denied" || this.state === "absent") this.run();
  }

  async run() {
    let wait = FIRST_WAIT_MS;
    this.set("connecting");
    while (!this.isStopped) {
      const abort = (this.abort = new AbortController());
      try {
        for await (const { event, data } of this.api.events("/admin/live", { admin: true, signal: abort.signal })) {
          wait = FIRST_WAIT_MS;
          this.onEvent(event, JSON.parse(data));
          this.set("open");
        }
      } catch (error) {
        if (this.isStopped || this.state === "paused") return;
        if (error.status === 404) return this.set("absent", error.message);
        if (DENIED.has(error.status)) return this.set("denied", error.message);
      }
      if (this.isStopped || this.state === "paused") return;
      this.set("connecting");
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  set(state, message = "") {
    this.state = state;
    this.message = message;
    this.onChange();
  }
}

/** Return the model that the events go to, and the source; the view renders again at most once for each frame. */
export function useLive(api, makeModel) {
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
  source.current ??= new LiveSource(api, (name, data) => model.onEvent(name, data), redraw);
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
