// ConversationWriter: keeps conversations in a ConversationStore, one change of each at a time. What is not yet kept
// when the page goes away is written to the local storage at once, and goes on to the store when the page is loaded;
// a deletion likewise.
import { newId } from "../lib/ids.js";
import { keepText, keptNames, keptText } from "../lib/kept.js";
import { inOtherTab, showPath, treeOf, withoutRun } from "./message_tree.js";

const UNSAVED = "chairlift.unsaved.";

export class ConversationWriter {
  constructor(store) {
    this.store = store;
    this.unsaved = new Map(); // id -> {conversation, withMessages, isAgain, revision, running} until it is kept
    this.kept = new WeakMap(); // conversation -> its nodes in the store
  }

  /**
   * Return a conversation, as the list has it, with its messages from the store; `isInOtherTab` says that another tab
   * generates an answer of it. Raises what ConversationStore.messages raises.
   */
  async read(meta, isInOtherTab) {
    const messages = await this.store.messages(meta.id);
    const conversation = { revision: null, ...meta };
    showPath(conversation, treeOf(messages.map(isInOtherTab ? inOtherTab : withoutRun)), meta.leaf);
    this.kept.set(conversation, conversation.nodes);
    return conversation;
  }

  /** Return a conversation that is not kept yet, or undefined. */
  find(id) {
    return this.unsaved.get(id)?.conversation;
  }

  /** Say that a conversation has changed, so that it is not lost when the page goes away before it is kept. */
  mark(conversation) {
    const { id } = conversation;
    const known = this.unsaved.get(id);
    if (known) return known;
    const state = { conversation, withMessages: false, isAgain: false, revision: null, running: null };
    this.unsaved.set(id, state);
    return state;
  }

  isSaving(id) {
    return Boolean(this.unsaved.get(id)?.running);
  }

  /** Keep nothing more of a conversation, which another tab has deleted. */
  forget(id) {
    this.unsaved.delete(id);
    keepText(UNSAVED + id, null);
  }

  /** Delete a conversation, also when the page goes away meanwhile. Raises what ConversationStore.remove raises. */
  async remove(id) {
    this.unsaved.delete(id);
    keepText(UNSAVED + id, JSON.stringify({ meta: { id }, isRemoved: true }));
    await this.store.remove(id);
    keepText(UNSAVED + id, null);
  }

  /** Keep a conversation as it is now. Returns what ConversationStore.save returns, and raises what it raises. */
  save(conversation, withMessages) {
    const state = this.mark(conversation);
    state.withMessages ||= withMessages;
    state.isAgain = true;
    state.running ??= this.write(state).finally(() => { state.running = null; });
    return state.running;
  }

  async write(state) {
    const { conversation } = state;
    const { id } = conversation;
    let outcome = "kept";
    while (state.isAgain && outcome === "kept" && this.unsaved.get(id) === state) {
      state.isAgain = false;
      state.revision = newId();
      const { nodes } = conversation;
      const { withMessages } = state;
      const meta = { ...metaOf(conversation), revision: state.revision };
      outcome = await this.store.save(meta, withMessages ? nodes : undefined, conversation.revision ?? null);
      if (outcome === "kept") {
        conversation.revision = state.revision;
        if (withMessages) this.kept.set(conversation, nodes);
      } else this.kept.delete(conversation);
    }
    if (this.unsaved.get(id) === state) this.unsaved.delete(id);
    return outcome;
  }

  /** Write what is not kept to the local storage, which takes it at once; a page that goes away waits for nothing. */
  flush() {
    for (const [id, { conversation, revision }] of this.unsaved) {
      const kept = this.kept.get(conversation) ?? [];
      const { nodes } = conversation;
      let from = 0;
      while (from < nodes.length && nodes[from] === kept[from]) from += 1;
      const revisions = [conversation.revision ?? null, revision];
      const text = JSON.stringify({ meta: metaOf(conversation), revisions, from, messages: nodes.slice(from) });
      keepText(UNSAVED + id, text);
    }
  }

  /** Forget what `flush` has written, because the page has come back as it was. */
  unflush() {
    for (const id of this.unsaved.keys()) keepText(UNSAVED + id, null);
  }

  /** Move what an earlier page has written to the local storage into the store. Raises where it takes no more. */
  async recover() {
    const names = keptNames(UNSAVED);
    if (!names.length) return;
    const all = await this.store.list();
    for (const name of names) {
      const entry = parsed(keptText(name));
      const stored = all.find(({ id }) => id === entry?.meta.id);
      if (entry?.isRemoved) await this.store.remove(entry.meta.id);
      else if (entry && isNewer(entry, stored)) await this.apply(entry, stored);
      keepText(name, null);
    }
  }

  async apply({ meta, from, messages }, stored) {
    const before = from ? await this.store.messages(meta.id) : [];
    if (before.length < from) return;
    const seen = stored ? (stored.revision ?? null) : null;
    await this.store.save({ ...meta, revision: newId() }, [...before.slice(0, from), ...messages], seen);
  }
}

/** Return whether an entry comes after what is stored: no other page has changed or deleted that in between. */
function isNewer({ revisions }, stored) {
  return stored ? revisions.includes(stored.revision ?? null) : revisions[0] === null;
}

/** Return what the list shows of a conversation. */
export function metaOf({ messages: _messages, nodes: _nodes, ...meta }) {
  return meta;
}

function parsed(text) {
  try {
    const entry = JSON.parse(text);
    return entry?.meta?.id ? entry : null;
  } catch {
    return null;
  }
}
