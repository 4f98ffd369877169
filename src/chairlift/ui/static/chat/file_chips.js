// FileChips: the files of a message as chips with name and size; a chip shows the file's text in a dialog.
import { useModal } from "../lib/dialog.js";
import { bytes } from "../lib/format.js";
import { html, useRef, useState } from "../lib/html.js";
import { Icon, IconButton } from "../shell/icons.js";

const SHOWN_CHARS = 100_000;

/** `onRemove` gets the id of a file; without it the files stay. */
export function FileChips({ files, onRemove }) {
  const [shown, setShown] = useState(null);
  return html`<div><ul class="files" aria-label="Attached files">
    ${files.map((file) => html`<li key=${file.id} class="file" data-testid="file">
      <button type="button" class="file-name" disabled=${file.text === null} onClick=${() => setShown(file)}
        title="Show ${file.name}"><${Icon} name="file" /><span class="file-title">${file.name}</span>
        <span class="file-size">${file.text === null ? "reading…" : bytes(file.size)}</span></button>
      ${onRemove && html`<${IconButton} icon="close" label="Remove ${file.name}" onClick=${() => onRemove(file.id)} />`}
    </li>`)}</ul>
    ${shown && html`<${FileDialog} file=${shown} onClose=${() => setShown(null)} />`}
  </div>`;
}

function FileDialog({ file, onClose }) {
  const dialog = useRef();
  useModal(dialog);
  const { name, size, text } = file;
  const rest = text.length - SHOWN_CHARS;
  return html`<dialog ref=${dialog} class="dialog file-dialog" aria-labelledby="file-title" onCancel=${onClose}>
    <h2 id="file-title">${name}</h2>
    <p class="hint">${bytes(size)}. This is the text that the model gets.${rest > 0
      && ` ${rest.toLocaleString("en")} further characters are not shown here.`}</p>
    <pre tabindex="0" dir="auto">${text.slice(0, SHOWN_CHARS)}</pre>
    <div class="dialog-actions"><button type="button" class="button" onClick=${onClose}>Close</button></div>
  </dialog>`;
}
