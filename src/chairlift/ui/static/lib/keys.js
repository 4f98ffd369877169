// The API key and the admin key: asked for when the server needs one, kept in session storage only.
import { Changes } from "./changes.js";
import { keepText, keptText } from "./kept.js";

const NAMES = { user: "chairlift.key", admin: "chairlift.admin-key" };

/** Keys of this browser tab, and the requests for one that wait for the person at the page. */
export class Keys {
  constructor() {
    this.open = null; // {kind, message, finish}: the question that the dialog shows
    this.changes = new Changes();
    this.values = {};
    for (const kind of Object.keys(NAMES)) this.values[kind] = keptText(NAMES[kind], "sessionStorage") ?? "";
  }

  get(kind) {
    return this.values[kind];
  }

  get hasAny() {
    return Object.values(this.values).some((value) => value !== "");
  }

  /** Forget all keys, for example because another person uses the browser next. */
  forget() {
    for (const kind of Object.keys(NAMES)) this.set(kind, "");
  }

  set(kind, value) {
    this.values[kind] = value;
    keepText(NAMES[kind], value || null, "sessionStorage");
    this.changes.notify();
  }

  /** Ask for a key once for all waiting requests; resolves to whether one was given. */
  ask(kind, message) {
    if (this.open?.kind === kind) return this.open.promise;
    if (this.open) return this.open.promise.then(() => this.ask(kind, message));
    const question = { kind, message };
    question.promise = new Promise((resolve) => {
      question.finish = (value) => {
        this.open = null;
        if (value) this.set(kind, value);
        else this.changes.notify();
        resolve(Boolean(value));
      };
    });
    this.open = question;
    this.changes.notify();
    return question.promise;
  }
}
