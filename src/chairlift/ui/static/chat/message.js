// Message: one message of a conversation, with its buttons, reasoning, tool calls, failure and times.
import { Boundary } from "../lib/boundary.js";
import { focusIfLost } from "../lib/dialog.js";
import { html, memo, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { isSubmit } from "../lib/keyboard.js";
import { copyText } from "../lib/markdown.js";
import { Icon, IconButton } from "../shell/icons.js";
import { continuationOf } from "./continuation.js";
import { fenced } from "./conversation_markdown.js";
import { FileChips } from "./file_chips.js";
import { rateOf } from "./generation.js";
import { MarkdownText } from "./markdown_text.js";
import { ToolCalls } from "./tool_calls.js";

/**
 * `actions` has setEdit(id, text), which opens the editor, or closes it with null, edit(id, text, files),
 * retry(index), goOn(), showVersion(id) and sendResults(results); it is the same object at each rendering. `edited` is
 * the text in the editor while it is open, `versions` that of VersionSwitch.
 */
export const Message = memo((properties) => {
  const { message } = properties;
  return html`<${Boundary} value=${message} fallback=${() => html`<p class="user-text">${message.content}</p>`}>
    <${Body} ...${properties} /><//>`;
});

function Body({ message, index, actions, isLast, isBusy, edited, versions }) {
  if (message.role === "user") return html`<${UserMessage} ...${{ message, actions, isBusy, edited, versions }} />`;
  if (message.role === "tool") {
    return html`<div class="tool-result"><${Icon} name="tool" />
      <pre tabindex="0" dir="auto">${message.content}</pre></div>`;
  }
  return html`<${Answer} ...${{ message, index, actions, isLast, isBusy, versions }} />`;
}

function UserMessage({ message, actions, isBusy, edited, versions }) {
  if (edited !== undefined) return html`<${Editor} ...${{ message, text: edited, actions, isBusy }} />`;
  return html`<div class="user-message">
    <div class="user-content">
      ${message.files && html`<${FileChips} files=${message.files} />`}
      ${message.content.trim() && html`<div class="user-text" dir="auto"
        data-testid="user-text">${message.content}</div>`}
    </div>
    <div class="message-actions">
      <${CopyButton} text=${message.content} />
      <${IconButton} icon="edit" label="Edit message" disabled=${isBusy}
        onClick=${() => actions.setEdit(message.id, message.content)} />
    </div>
    <${VersionSwitch} versions=${versions} isBusy=${isBusy} onShow=${actions.showVersion} />
  </div>`;
}

function Editor({ message, text, actions, isBusy }) {
  const { id } = message;
  const field = useRef();
  const [files, setFiles] = useState(message.files ?? []);
  const canSend = (text.trim() !== "" || files.length > 0) && !isBusy;
  const close = () => actions.setEdit(id, null);
  useLayoutEffect(() => { // an effect after the next frame would lose the first keys of a fast user
    field.current.focus();
    const article = field.current.closest("article");
    return () => focusIfLost(() => (article.isConnected ? article.querySelector("[aria-label='Edit message']")
      : document.querySelector(".messages")));
  }, []);
  const submit = (event) => {
    event.preventDefault();
    if (canSend) actions.edit(id, text, files);
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") close();
    if (isSubmit(event)) submit(event);
  };
  return html`<form class="editor" onSubmit=${submit}>
    ${files.length > 0 && html`<${FileChips} files=${files} onRemove=${(removed) => {
      setFiles(files.filter((file) => file.id !== removed));
      field.current.focus();
    }} />`}
    <textarea aria-label="Edited message" data-testid="editor" dir="auto" ref=${field} value=${text}
      rows=${Math.min(12, text.split("\n").length + 1)}
      onInput=${(event) => actions.setEdit(id, event.target.value)} onKeyDown=${onKeyDown}></textarea>
    <div class="editor-actions">
      <span class="hint">The earlier version stays beside this one.</span>
      <button type="button" class="button" onClick=${close}>Cancel</button>
      <button type="submit" class="button primary" disabled=${!canSend}>Send</button>
    </div>
  </form>`;
}

/** Return the text of an answer as Markdown; that of a JSON schema is a code block, in lines when it is complete. */
function shownText({ content, isJson, isRunning }) {
  if (!isJson) return content;
  try {
    return fenced(isRunning ? content : JSON.stringify(JSON.parse(content), null, 2), "json");
  } catch {
    return fenced(content, "json"); // it was cut
  }
}

function Answer({ message, index, actions, isLast, isBusy, versions }) {
  const hasText = message.content !== "" || message.toolCalls?.length > 0;
  return html`<div class="answer" aria-busy=${message.isRunning ? "true" : undefined}>
    ${message.reasoning && html`<${Reasoning} message=${message} isThinking=${message.isRunning && !hasText} />`}
    ${message.content && html`<${MarkdownText} text=${shownText(message)} isRunning=${message.isRunning} />`}
    ${message.toolCalls?.length > 0 && html`<${ToolCalls} message=${message} isOpen=${isLast && !isBusy}
      onResults=${actions.sendResults} />`}
    ${message.isRunning && !hasText && !message.reasoning && html`<div class="waiting" data-testid="waiting">
      <span class="visually-hidden">Waiting for the first token</span><i></i><i></i><i></i></div>`}
    ${message.error && html`<${Failure} message=${message} onRetry=${() => actions.retry(index)} isBusy=${isBusy} />`}
    ${!message.isRunning && html`<${AnswerFooter} ...${{ message, index, actions, isLast, isBusy, versions }} />`}
  </div>`;
}

function Reasoning({ message, isThinking }) {
  const [choice, setChoice] = useState(null); // null: open while the model reasons
  const isOpen = choice ?? isThinking;
  return html`<details class="reasoning" open=${isOpen} data-testid="reasoning">
    <summary onClick=${(event) => { event.preventDefault(); setChoice(!isOpen); }}>
      <${Icon} name="chevron" />${isThinking ? "Reasoning…" : "Reasoning"}
    </summary>
    ${isOpen && html`<div class="reasoning-text" dir="auto">${message.reasoning}</div>`}
  </details>`;
}

function Failure({ message, onRetry, isBusy }) {
  const { error } = message;
  return html`<div class="failure" role="alert" data-testid="failure">
    <p>${error.message}${error.retryAfter ? ` Try again in ${error.retryAfter} s.` : ""}</p>
    <button type="button" class="button" disabled=${isBusy} onClick=${onRetry}><${Icon} name="retry" />Retry</button>
  </div>`;
}

function AnswerFooter({ message, index, actions, isLast, isBusy, versions }) {
  const { isPossible, reason } = isLast ? continuationOf(message) : {};
  return html`<div class="answer-footer">
    <${VersionSwitch} versions=${versions} isBusy=${isBusy} onShow=${actions.showVersion} />
    ${isPossible && html`<button type="button" class="button continue" disabled=${isBusy} onClick=${actions.goOn}
      data-testid="continue"><${Icon} name="continue" />Continue</button>`}
    <div class="message-actions">
      ${message.content && html`<${CopyButton} text=${message.content} />`}
      ${!message.error && html`<${IconButton} icon="retry" label="Answer again" disabled=${isBusy}
        onClick=${() => actions.retry(index)} />`}
    </div>
    <${Stats} message=${message} />
    ${reason && html`<p class="hint" data-testid="not-continued">${reason}</p>`}
    ${message.ignored && html`<p class="hint">The model has no use for: ${message.ignored}</p>`}
  </div>`;
}

function Stats({ message }) {
  const { stats } = message;
  const notes = [];
  if (message.isInOtherTab) notes.push("being generated in another tab");
  else if (message.isStopped) notes.push("stopped");
  else if (message.finish === "length") notes.push("ended at the token limit");
  if (stats) {
    notes.push(`${stats.isCounted ? "" : "about "}${stats.tokens} token${stats.tokens === 1 ? "" : "s"}`);
    const rate = rateOf(stats);
    if (rate) notes.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
    notes.push(`first token ${formatSeconds(stats.ttft)}`);
    if (stats.prompt !== null) notes.push(`${stats.prompt} prompt${stats.cached ? ` (${stats.cached} cached)` : ""}`);
  }
  return html`<p class="stats" data-testid="stats">${notes.map((note) => html`<span key=${note}>${note}</span>`)}</p>`;
}

function formatSeconds(seconds) {
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

function CopyButton({ text }) {
  const [isCopied, setIsCopied] = useState(false);
  const copy = async () => {
    setIsCopied(await copyText(text));
    setTimeout(() => setIsCopied(false), 1500);
  };
  return html`<${IconButton} icon=${isCopied ? "check" : "copy"} label=${isCopied ? "Copied" : "Copy message"}
    onClick=${copy} />`;
}

/**
 * "2 / 3" at a message that has several versions, with buttons to the one before and the one behind. `versions` is
 * {position, count, previous, next} of message_tree.js, or undefined for a message with one version.
 */
function VersionSwitch({ versions, isBusy, onShow }) {
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
