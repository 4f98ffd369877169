// useSearch and SearchResults: what a search in all conversations has found, and the keys that go through it.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { NAMES } from "./message_list.js";

const WAIT_MS = 120; // after the last key
const MAX_SHOWN = 100;

/** Return what ConversationSearch finds for a text, null while nothing is searched for. */
export function useSearch(model, query) {
  const [results, setResults] = useState(null);
  const latest = useRef(0);
  const isSearching = query.trim() !== "";
  useEffect(() => {
    latest.current += 1;
    if (!isSearching) return setResults(null);
    const number = latest.current;
    const timer = setTimeout(async () => {
      let found = { list: [], error: "" };
      try {
        found.list = await model.search.find(query, model.conversations);
      } catch {
        found = { list: [], error: "The kept conversations could not be read." };
      }
      if (number === latest.current) setResults(found);
    }, WAIT_MS);
    return () => clearTimeout(timer);
  }, [query, model.conversations]);
  return isSearching ? results : null;
}

/** The arrow keys go from the field to the results and between them; Escape empties the field. */
export function moveFocus(event, field) {
  if (!["ArrowDown", "ArrowUp"].includes(event.key)) return;
  const places = [field, ...field.closest(".conversations").querySelectorAll(".search-results button")];
  const index = places.indexOf(document.activeElement);
  const next = index < 0 ? undefined : places[index + (event.key === "ArrowDown" ? 1 : -1)];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

/** `onOpen(id, messageId)` opens a conversation, at a message unless that is null. */
export function SearchResults({ results, onOpen }) {
  const { list, error } = results;
  const shown = list.slice(0, MAX_SHOWN);
  return html`<div class="search-results">
    <p class="hint" role="status" data-testid="found">${error || summaryOf(list.length)}</p>
    <ul>${shown.map(({ conversation, title, hits, count }) => html`<li key=${conversation.id} data-testid="result">
      <button type="button" class="conversation" onClick=${() => onOpen(conversation.id, hits[0]?.id ?? null)}>
        <span dir="auto">${title ? html`<${Hit} hit=${title} />` : conversation.title || "Conversation"}</span>
      </button>
      ${hits.map((hit) => html`<button key=${hit.id} type="button" class="hit" dir="auto"
        onClick=${() => onOpen(conversation.id, hit.id)}>
        <b>${NAMES[hit.role] ?? ""}</b> <${Hit} hit=${hit} /></button>`)}
      ${count > hits.length && html`<p class="hint">and in ${count - hits.length} more messages</p>`}
    </li>`)}</ul>
  </div>`;
}

function summaryOf(count) {
  if (!count) return "Nothing was found.";
  const found = `Found in ${count} conversation${count === 1 ? "" : "s"}`;
  return count > MAX_SHOWN ? `${found}; the first ${MAX_SHOWN} are shown.` : `${found}.`;
}

function Hit({ hit: { before, match, after } }) {
  return html`${before}<mark>${match}</mark>${after}`;
}
