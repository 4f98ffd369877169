// ExportDialog: saves the open conversation as a JSON file or as Markdown.
import { useModal } from "../lib/dialog.js";
import { html, useRef } from "../lib/html.js";
import { exportCurrent } from "./conversation_transfer.js";

export function ExportDialog({ model, onClose }) {
  const dialog = useRef();
  useModal(dialog);
  const save = (kind) => {
    exportCurrent(model, kind);
    onClose();
  };
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="export-title" onCancel=${onClose}>
    <h2 id="export-title">Export this conversation</h2>
    <p>The JSON file has all versions of its messages and its settings, and can be imported here or in another browser.
      The Markdown file is the text as it is shown.</p>
    <div class="dialog-actions">
      <button type="button" class="button" onClick=${onClose}>Cancel</button>
      <button type="button" class="button" onClick=${() => save("markdown")}>Markdown</button>
      <button type="button" class="button primary" onClick=${() => save("json")}>JSON</button>
    </div>
  </dialog>`;
}
