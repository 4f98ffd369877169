// ConversationIndex: what the list shows of each conversation, the last changed one first.
import { metaOf } from "./conversation_writer.js";

export class ConversationIndex {
  constructor(store) {
    this.store = store;
    this.entries = []; // {id, title, updated, ...} without messages; another array after each change
  }

  find(id) {
    return this.entries.find((each) => each.id === id);
  }

  /** Read all entries. Raises what ConversationStore.list raises. */
  async load() {
    this.entries = await this.store.list();
  }

  /** Read the entries with these ids again. Raises what ConversationStore.list raises. */
  async reload(ids) {
    const changed = new Set(ids);
    const stored = (await this.store.list()).filter(({ id }) => changed.has(id));
    this.entries = sorted([...stored, ...this.entries.filter(({ id }) => !changed.has(id))]);
  }

  /** Put a conversation, which has just changed, first. */
  putFirst(conversation) {
    const { id } = conversation;
    this.entries = [metaOf(conversation), ...this.entries.filter((each) => each.id !== id)];
  }

  add(entries) {
    this.entries = sorted([...this.entries, ...entries]);
  }

  /** Change fields of the entry with this id, if it is there. */
  change(id, fields) {
    this.entries = this.entries.map((each) => (each.id === id ? { ...each, ...fields } : each));
  }

  remove(id) {
    this.entries = this.entries.filter((each) => each.id !== id);
  }
}

function sorted(entries) {
  return entries.toSorted((one, other) => other.updated - one.updated);
}
