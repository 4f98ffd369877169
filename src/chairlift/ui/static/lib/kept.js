// Small texts in the browser's storage. A browser may forbid it; then nothing is kept, and the page works all the same.

/** Return a kept text, or null. `storage` is "localStorage", or "sessionStorage" for this tab only. */
export function keptText(name, storage = "localStorage") {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

/** Keep a text, or forget it where it is null. */
export function keepText(name, text, storage = "localStorage") {
  try {
    if (text === null) window[storage].removeItem(name);
    else window[storage].setItem(name, text);
  } catch {
    // The storage is full or forbidden.
  }
}

/** Return the names of kept texts that begin like this. */
export function keptNames(start) {
  try {
    return Object.keys(window.localStorage).filter((name) => name.startsWith(start));
  } catch {
    return [];
  }
}
