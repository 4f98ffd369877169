// KeyDialog: asks for the API key or the admin key.
import { useModal } from "../lib/dialog.js";
import { html, useLayoutEffect, useRef } from "../lib/html.js";

const TITLES = { user: "API key", admin: "Admin key" };

export function KeyDialog({ question }) {
  const dialog = useRef();
  const field = useRef();
  useModal(dialog);
  useLayoutEffect(() => {
    field.current.focus();
  }, [question]);
  const submit = (event) => {
    event.preventDefault();
    const value = field.current.value.trim();
    if (value) question.finish(value);
  };
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="key-title" aria-describedby="key-text"
      onCancel=${(event) => { event.preventDefault(); question.finish(""); }}>
    <form onSubmit=${submit}>
      <h2 id="key-title">${TITLES[question.kind]}</h2>
      <p id="key-text" role="alert">${question.message}</p>
      <label class="field">
        <span>${TITLES[question.kind]}</span>
        <input ref=${field} type="password" autocomplete="off" spellcheck=${false} required data-testid="key" />
      </label>
      <p class="hint">The key stays in this browser tab and is forgotten when you close it.</p>
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${() => question.finish("")}>Cancel</button>
        <button type="submit" class="button primary">Use key</button>
      </div>
    </form>
  </dialog>`;
}
