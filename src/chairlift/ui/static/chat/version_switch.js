// VersionSwitch: "2 / 3" at a message that has several versions, with buttons to the one before and the one behind.
import { html } from "../lib/html.js";
import { IconButton } from "../shell/icons.js";

/** `versions` is {position, count, previous, next} of message_tree.js, or undefined for a message with one version. */
export function VersionSwitch({ versions, isBusy, onShow }) {
  if (!versions) return null;
  const { position, count, previous, next } = versions;
  return html`<div class="version-switch" role="group" aria-label="Versions of this message" data-testid="versions">
    <${IconButton} icon="previous" label="Previous version" disabled=${isBusy || previous === null}
      onClick=${() => onShow(previous, "Previous version")} />
    <span aria-label="Version ${position} of ${count}" role="img">${position} / ${count}</span>
    <${IconButton} icon="next" label="Next version" disabled=${isBusy || next === null}
      onClick=${() => onShow(next, "Next version")} />
  </div>`;
}
