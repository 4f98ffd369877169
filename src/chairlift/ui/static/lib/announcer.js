// Announcer: sentences that screen readers read out; the shell has the one element that they are written into.
import { Changes } from "./changes.js";
import { html, useChanges } from "./html.js";

const announcer = { text: "", count: 0, changes: new Changes() };

/** Let screen readers read a sentence out, when they have finished what they read. */
export function announce(text) {
  announcer.text = text;
  announcer.count += 1;
  announcer.changes.notify();
}

/** The element of the sentences; the same sentence twice is another element, so that it is read twice. */
export function Announcer() {
  useChanges(announcer);
  return html`<div class="visually-hidden" role="status" data-testid="announcer"><p
    key=${announcer.count}>${announcer.text}</p></div>`;
}
