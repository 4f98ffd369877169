// ConversationSearch: finds a text in the titles and messages of all conversations. The texts are read from the store
// once, and again for conversations that have changed since.
const CONTEXT_CHARS = 40;
const MAX_HITS = 3; // of one conversation

export class ConversationSearch {
  constructor(store) {
    this.store = store;
    this.texts = new Map(); // id -> {key, messages: [{id, role, text, folded}]}
  }

  /**
   * Return [{conversation, title, hits, count}] in the order of `conversations`, as the list has them; `title` is a
   * hit or null, `hits` are the first of `count` messages that have the text: {id, role, before, match, after}.
   */
  async find(query, conversations) {
    const folded = fold(query.trim());
    if (!folded) return [];
    await this.read(conversations);
    const results = [];
    for (const conversation of conversations) {
      const title = hitOf({ text: conversation.title, folded: fold(conversation.title) }, folded);
      const found = (this.texts.get(conversation.id)?.messages ?? []).filter((each) => each.folded.includes(folded));
      if (!title && !found.length) continue;
      const hits = found.slice(0, MAX_HITS).map((each) => ({ id: each.id, role: each.role, ...hitOf(each, folded) }));
      results.push({ conversation, title, hits, count: found.length });
    }
    return results;
  }

  async read(conversations) {
    const changed = conversations.filter((each) => this.texts.get(each.id)?.key !== keyOf(each));
    if (!changed.length) return;
    const ids = changed.map(({ id }) => id);
    const stored = await this.store.messagesOf(ids);
    changed.forEach((each, index) => {
      const messages = stored[index].map(({ id, role, content, files }) => {
        const text = [content, ...(files ?? []).map((file) => `${file.name} ${file.text}`)].join("\n");
        return { id, role, text, folded: fold(text) };
      });
      this.texts.set(each.id, { key: keyOf(each), messages });
    });
    const all = new Set(conversations.map(({ id }) => id));
    for (const id of this.texts.keys()) if (!all.has(id)) this.texts.delete(id);
  }
}

function keyOf({ revision, updated }) {
  return `${revision ?? ""} ${updated}`;
}

function fold(text) {
  return text.toLowerCase();
}

/** Return where a text has the query, with some characters before and after it; null where it has not. */
function hitOf({ text, folded }, query) {
  const at = folded.indexOf(query);
  if (at < 0) return null;
  const source = text.length === folded.length ? text : folded; // a few letters grow when they are folded
  const end = at + query.length;
  const plain = (part) => part.replace(/\s+/g, " ");
  const after = end + 2 * CONTEXT_CHARS;
  return {
    before: `${at > CONTEXT_CHARS ? "…" : ""}${plain(source.slice(Math.max(0, at - CONTEXT_CHARS), at))}`,
    match: plain(source.slice(at, end)),
    after: `${plain(source.slice(end, after))}${after < source.length ? "…" : ""}`,
  };
}
