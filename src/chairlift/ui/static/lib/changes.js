// Changes: the listeners of an object, which are called after each change of it.
export class Changes {
  constructor() {
    this.listeners = new Set();
  }

  /** Call a listener after each change. Returns a function that ends this. */
  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Say that the object has changed. */
  notify() {
    for (const listener of this.listeners) listener();
  }
}
