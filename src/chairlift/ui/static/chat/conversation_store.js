// ConversationStore: conversations in the browser's IndexedDB; in memory where the browser has none (private windows).
//
// `conversations` has what the list shows of each; `messages` has the messages, which may be many.
const NAME = "chairlift";
const VERSION = 1;

export class ConversationStore {
  constructor() {
    this.opened = open().catch(() => null);
    this.memory = { conversations: new Map(), messages: new Map() };
  }

  /** Return whether conversations are kept when the page is closed. */
  async isPersistent() {
    return (await this.opened) !== null;
  }

  /** Return all conversations without their messages, the last changed one first. */
  async list() {
    const database = await this.opened;
    const all = database
      ? await result(database.transaction("conversations").objectStore("conversations").getAll())
      : [...this.memory.conversations.values()];
    return all.sort((one, other) => other.updated - one.updated);
  }

  /** Return the messages of a conversation. */
  async messages(id) {
    const database = await this.opened;
    if (!database) return this.memory.messages.get(id) ?? [];
    return (await result(database.transaction("messages").objectStore("messages").get(id))) ?? [];
  }

  /** Return the messages of each of several conversations, in the order of `ids`; all at once, which is fast. */
  async messagesOf(ids) {
    const database = await this.opened;
    if (!database) return ids.map((id) => this.memory.messages.get(id) ?? []);
    const store = database.transaction("messages").objectStore("messages");
    return (await Promise.all(ids.map((id) => result(store.get(id))))).map((messages) => messages ?? []);
  }

  /**
   * Keep a conversation, and its messages unless they are undefined. Raises where the storage is full.
   * `seen` is the revision that it replaces, null for a new one. Returns "kept", or what another tab did in between,
   * "changed" or "deleted"; then nothing is kept.
   */
  async save(conversation, messages, seen) {
    const database = await this.opened;
    if (!database) {
      this.memory.conversations.set(conversation.id, conversation);
      if (messages) this.memory.messages.set(conversation.id, messages);
      return "kept";
    }
    const transaction = database.transaction(["conversations", "messages"], "readwrite");
    const done = finished(transaction);
    done.catch(() => {}); // a request that fails raises first
    const conversations = transaction.objectStore("conversations");
    const stored = await result(conversations.get(conversation.id));
    const outcome = conflictOf(stored, seen);
    if (outcome === "kept") {
      conversations.put(conversation);
      if (messages) transaction.objectStore("messages").put(messages, conversation.id);
    }
    await done;
    return outcome;
  }

  /** Change the title of a conversation, if it is there. */
  async rename(id, title) {
    const database = await this.opened;
    if (!database) return;
    const transaction = database.transaction("conversations", "readwrite");
    const done = finished(transaction);
    done.catch(() => {});
    const conversations = transaction.objectStore("conversations");
    const stored = await result(conversations.get(id));
    if (stored) conversations.put({ ...stored, title });
    await done;
  }

  /** Delete a conversation. */
  async remove(id) {
    const database = await this.opened;
    this.memory.conversations.delete(id);
    this.memory.messages.delete(id);
    if (!database) return;
    const transaction = database.transaction(["conversations", "messages"], "readwrite");
    transaction.objectStore("conversations").delete(id);
    transaction.objectStore("messages").delete(id);
    await finished(transaction);
  }
}

function conflictOf(stored, seen) {
  if (!stored) return seen === null ? "kept" : "deleted";
  return (stored.revision ?? null) === seen ? "kept" : "changed";
}

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("blocked"));
  });
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}
