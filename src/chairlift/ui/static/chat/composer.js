// Composer: the field for the next message, with the button that sends it or stops the answer.
import { html, useChanges, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { isSubmit } from "../lib/keyboard.js";
import { keepText, keptText } from "../lib/kept.js";
import { Icon, IconButton } from "../shell/icons.js";
import { FileChips } from "./file_chips.js";

const UNSENT = "chairlift.unsent";

/** `files` are UnsentFiles; `onSend` gets the text and the files. */
export function Composer({ conversationId, isRunning, model, files, onSend, onStop }) {
  const field = useRef();
  const chooser = useRef();
  useChanges(files);
  const [text, setText] = useState(() => keptText(UNSENT, "sessionStorage") ?? "");
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${field.current.scrollHeight}px`;
    keepText(UNSENT, text, "sessionStorage");
  }, [text]);
  useLayoutEffect(() => {
    if (matchMedia("(hover: hover)").matches) field.current.focus(); // on a phone it would open the keyboard
  }, [conversationId]);
  const canSend = (text.trim() !== "" || files.files.length > 0) && !isRunning && !files.isReading;
  const submit = (event) => {
    event.preventDefault();
    if (!canSend) return;
    if (onSend(text, files.files) === false) return; // nothing was sent; the page says why
    files.take();
    setText("");
  };
  const onKeyDown = (event) => {
    if (isSubmit(event)) submit(event);
    if (event.key === "Escape" && isRunning) onStop();
  };
  const choose = ({ target }) => {
    files.add([...target.files]);
    target.value = ""; // the same file may be chosen again
  };
  const paste = (event) => {
    const { files: pasted, types } = event.clipboardData;
    if (!pasted.length || types.includes("text/html")) return; // text of an office program, with a picture of it
    event.preventDefault();
    files.add([...pasted]);
  };
  return html`<form class="composer" onSubmit=${submit}>
    ${files.errors.length > 0 && html`<div class="composer-errors" role="alert" data-testid="file-errors">
      <div>${files.errors.map((error) => html`<p key=${error}>${error}</p>`)}</div>
      <${IconButton} icon="close" label="Close this message" onClick=${() => files.clearErrors()} /></div>`}
    ${files.files.length > 0 && html`<${FileChips} files=${files.files} onRemove=${(id) => {
      files.remove(id);
      field.current.focus();
    }} />`}
    <div class="composer-frame">
      <input type="file" multiple hidden ref=${chooser} onChange=${choose} data-testid="file-chooser" />
      <${IconButton} icon="attach" label="Attach text files or PDFs" onClick=${() => chooser.current.click()} />
      <label class="visually-hidden" for="composer">Message</label>
      <textarea id="composer" dir="auto" ref=${field} rows="1" value=${text} data-testid="composer"
        placeholder=${model ? `Message ${model}` : "Message"} aria-describedby="composer-hint"
        onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown} onPaste=${paste}></textarea>
      ${isRunning
        ? html`<button type="button" class="send" aria-label="Stop" title="Stop (Escape)" onClick=${onStop}
            data-testid="stop"><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="send" aria-label="Send" title="Send (Enter)" disabled=${!canSend}
            data-testid="send"><${Icon} name="send" /></button>`}
    </div>
    <p id="composer-hint" class="hint composer-hint">Enter sends, Shift+Enter begins a new line.</p>
  </form>`;
}
