// ConversationList: the conversations by day, with buttons to rename and delete each, or what a search has found.
import { focusIfLost, useModal } from "../lib/dialog.js";
import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { Icon, IconButton } from "../shell/icons.js";
import { moveFocus, SearchResults, useSearch } from "./search_results.js";
import { TransferButtons } from "./transfer_buttons.js";

const DAY_MS = 86_400_000;

function groupOf(updated, now) {
  const today = new Date(now).setHours(0, 0, 0, 0);
  if (updated >= today) return "Today";
  if (updated >= today - DAY_MS) return "Yesterday";
  if (updated >= today - 6 * DAY_MS) return "Last seven days";
  return "Earlier";
}

/** Return [name, conversations] for each group, in order. */
function grouped(conversations) {
  const groups = new Map();
  const now = Date.now();
  for (const each of conversations) {
    const name = groupOf(each.updated, now);
    if (groups.has(name)) groups.get(name).push(each);
    else groups.set(name, [each]);
  }
  return [...groups];
}

/** `onOpen(id, messageId)` opens a conversation; at that message unless it is null. `onChoose` closes the list. */
export function ConversationList({ model, onOpen, onChoose }) {
  const [query, setQuery] = useState("");
  const field = useRef();
  const results = useSearch(model, query);
  const create = () => {
    model.create();
    onChoose();
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape" && query) {
      event.preventDefault();
      event.stopPropagation(); // it would close the list on a phone
      setQuery("");
      field.current.focus();
    } else moveFocus(event, field.current);
  };
  return html`<div class="conversations" onKeyDown=${onKeyDown}>
    <div class="conversations-head">
      <button type="button" class="button new-conversation" onClick=${create} data-testid="new">
        <${Icon} name="plus" />New conversation
      </button>
      <input ref=${field} type="search" value=${query} placeholder="Search" aria-label="Search all conversations"
        data-testid="search" onInput=${(event) => setQuery(event.target.value)} />
    </div>
    ${results ? html`<${SearchResults} results=${results} onOpen=${onOpen} />`
      : html`<${Groups} model=${model} onOpen=${onOpen} />`}
    <${TransferButtons} model=${model} />
  </div>`;
}

function Groups({ model, onOpen }) {
  const [renamed, setRenamed] = useState(null);
  const [removed, setRemoved] = useState(null);
  return html`<div class="conversation-groups">
    ${model.conversations.length === 0 && html`<p class="hint conversations-empty">
      Conversations stay in this browser. Nothing is kept on the server.</p>`}
    ${grouped(model.conversations).map(([name, members]) => html`<section key=${name} aria-label=${name}>
      <h2>${name}</h2>
      <ul>${members.map((each) => html`<li key=${each.id} data-testid="conversation"
          class=${each.id === model.current?.id ? "current" : ""}>
        ${each.id === renamed
          ? html`<${RenameForm} title=${each.title} onDone=${(title) => {
              setRenamed(null);
              if (title !== null) model.rename(each.id, title);
            }} />`
          : html`<button type="button" class="conversation" onClick=${() => onOpen(each.id, null)}
                aria-current=${each.id === model.current?.id ? "true" : undefined}>
              <span dir="auto">${each.title || "Conversation"}</span>
              ${model.running.has(each.id) && html`<i class="running" title="An answer is being generated"></i>`}
            </button>
            <${IconButton} icon="edit" label="Rename ${each.title}" onClick=${() => setRenamed(each.id)} />
            <${IconButton} icon="trash" label="Delete ${each.title}" onClick=${() => setRemoved(each)} />`}
      </li>`)}</ul>
    </section>`)}
    ${removed && html`<${RemoveDialog} conversation=${removed} onDone=${(isSure) => {
      setRemoved(null);
      if (isSure) model.remove(removed.id);
    }} />`}
  </div>`;
}

function RenameForm({ title, onDone }) {
  const field = useRef();
  const isDone = useRef(false); // the field also loses the focus when it is removed
  const byKey = useRef(false); // another part has the focus where it ends otherwise
  useLayoutEffect(() => {
    field.current.focus(); // Firefox gives the focus to no field for `select` alone
    field.current.select();
    const item = field.current.closest("li");
    return () => byKey.current && focusIfLost(() => item.querySelector(".conversation"));
  }, []);
  const end = (text) => {
    if (isDone.current) return;
    isDone.current = true;
    onDone(text);
  };
  return html`<form class="rename" onSubmit=${(event) => {
      event.preventDefault();
      byKey.current = true;
      end(field.current.value);
    }}>
    <input ref=${field} aria-label="Title of the conversation" defaultValue=${title} maxlength="60"
      onBlur=${(event) => end(event.target.value)}
      onKeyDown=${(event) => {
        if (event.key !== "Escape") return;
        byKey.current = true;
        end(null);
      }} />
  </form>`;
}

function RemoveDialog({ conversation, onDone }) {
  const dialog = useRef();
  useModal(dialog);
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="remove-title" onCancel=${() => onDone(false)}>
    <h2 id="remove-title">Delete this conversation?</h2>
    <p>“${conversation.title}” is removed from this browser. It cannot be brought back.</p>
    <div class="dialog-actions">
      <button type="button" class="button" onClick=${() => onDone(false)}>Keep</button>
      <button type="button" class="button danger" onClick=${() => onDone(true)} data-testid="delete">Delete</button>
    </div>
  </dialog>`;
}
