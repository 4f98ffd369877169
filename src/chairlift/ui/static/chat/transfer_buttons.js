// TransferButtons: import a file of conversations, and export all of them; below the list, with what was done.
import { html, useRef, useState } from "../lib/html.js";
import { Icon } from "../shell/icons.js";
import { exportAll, importFile } from "./conversation_transfer.js";

export function TransferButtons({ model }) {
  const picker = useRef();
  const [outcome, setOutcome] = useState({ text: "", isError: false });
  const pick = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    setOutcome({ text: `${file.name} is being imported.`, isError: false });
    const done = await importFile(model, file);
    picker.current && (picker.current.value = ""); // the same file can be chosen again
    setOutcome({ ...done, text: `${file.name}: ${done.text}` });
  };
  const save = async () => setOutcome({ text: await exportAll(model), isError: false });
  return html`<div class="transfer">
    <p class=${outcome.isError ? "field-error" : "hint"} role="status" data-testid="transfer">${outcome.text}</p>
    <div class="transfer-buttons">
      <button type="button" class="button" onClick=${() => picker.current.click()}>
        <${Icon} name="import" />Import</button>
      <button type="button" class="button" onClick=${save}><${Icon} name="export" />Export all</button>
    </div>
    <input ref=${picker} type="file" accept=".json,application/json" hidden data-testid="import" onChange=${pick} />
  </div>`;
}
