// Composer: the field for the next message, with the button that sends it or stops the answer.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { isSubmit } from "../lib/keyboard.js";
import { keepText, keptText } from "../lib/kept.js";
import { Icon } from "../shell/icons.js";

const UNSENT = "chairlift.unsent";

export function Composer({ conversationId, isRunning, model, onSend, onStop }) {
  const field = useRef();
  const [text, setText] = useState(() => keptText(UNSENT, "sessionStorage") ?? "");
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${field.current.scrollHeight}px`;
    keepText(UNSENT, text, "sessionStorage");
  }, [text]);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) field.current.focus(); // on a phone it would open the keyboard
  }, [conversationId]);
  const canSend = text.trim() !== "" && !isRunning;
  const submit = (event) => {
    event.preventDefault();
    if (!canSend) return;
    onSend(text);
    setText("");
  };
  const onKeyDown = (event) => {
    if (isSubmit(event)) submit(event);
    if (event.key === "Escape" && isRunning) onStop();
  };
  return html`<form class="composer" onSubmit=${submit}>
    <div class="composer-frame">
      <label class="visually-hidden" for="composer">Message</label>
      <textarea id="composer" dir="auto" ref=${field} rows="1" value=${text} data-testid="composer"
        placeholder=${model ? `Message ${model}` : "Message"} aria-describedby="composer-hint"
        onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
      ${isRunning
        ? html`<button type="button" class="send" aria-label="Stop" title="Stop (Escape)" onClick=${onStop}
            data-testid="stop"><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="send" aria-label="Send" title="Send (Enter)" disabled=${!canSend}
            data-testid="send"><${Icon} name="send" /></button>`}
    </div>
    <p id="composer-hint" class="hint composer-hint">Enter sends, Shift+Enter begins a new line.</p>
  </form>`;
}
