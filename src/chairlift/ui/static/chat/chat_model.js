// ChatModel: the conversations, the open one, and the answers that are being generated; it outlives the view.
import { keepText, keptText } from "../lib/kept.js";
import { ConversationStore } from "./conversation_store.js";
import { emptyAnswer, generate, requestBody } from "./generation.js";

const PARAMETERS = "chairlift.parameters";
const CURRENT = "chairlift.conversation";
const SAVE_INTERVAL_MS = 2000;
const MAX_TITLE_CHARS = 60;

export class ChatModel {
  /** `firstModel` returns a model's name where a message is sent without one. */
  constructor(api, firstModel) {
    this.api = api;
    this.firstModel = firstModel;
    this.store = new ConversationStore();
    this.conversations = []; // as the list shows them
    this.current = null; // {id, title, parameters, messages, ...}; messages are replaced, never changed
    this.running = new Map(); // id of a conversation -> {controller, conversation}
    this.notice = "";
    this.isLoaded = false;
    this.listeners = new Set();
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed() {
    for (const listener of this.listeners) listener();
  }

  get isRunning() {
    return this.current !== null && this.running.has(this.current.id);
  }

  /** Load the list, and open the conversation that was open last. */
  async load() {
    if (this.isLoaded) return;
    this.isLoaded = true;
    this.conversations = await this.store.list();
    if (!(await this.store.isPersistent())) this.notice = "This browser keeps no conversations in this window.";
    const last = keptText(CURRENT);
    const found = this.conversations.find(({ id }) => id === last);
    if (found) await this.open(found.id);
    else this.create();
  }

  /** Open a new conversation; it joins the list with its first message. */
  create() {
    this.current = {
      id: crypto.randomUUID?.() ?? String(Math.random()), title: "", updated: Date.now(), messages: [],
      parameters: keptParameters(),
    };
    keepText(CURRENT, null);
    this.changed();
  }

  async open(id) {
    const running = this.running.get(id);
    if (running) this.current = running.conversation;
    else {
      const found = this.conversations.find((each) => each.id === id);
      const messages = await this.store.messages(id);
      this.current = { ...found, messages: messages.map(withoutRun) };
    }
    keepText(CURRENT, id);
    this.changed();
  }

  async rename(id, title) {
    const name = title.trim().slice(0, MAX_TITLE_CHARS);
    if (!name) return;
    this.conversations = this.conversations.map((each) => (each.id === id ? { ...each, title: name } : each));
    for (const each of [this.current, this.running.get(id)?.conversation]) if (each?.id === id) each.title = name;
    await this.keep(this.conversations.find((each) => each.id === id));
    this.changed();
  }

  async remove(id) {
    this.running.get(id)?.controller.abort();
    this.running.delete(id);
    this.conversations = this.conversations.filter((each) => each.id !== id);
    if (this.current?.id === id) this.create();
    await this.store.remove(id);
    this.changed();
  }

  /** Change settings of the open conversation; new ones begin with them. The system prompt stays with this one. */
  setParameters(parameters) {
    this.current.parameters = parameters;
    const { system, ...kept } = parameters;
    keepText(PARAMETERS, JSON.stringify(kept));
    if (this.current.messages.length) this.save(this.current, false);
    this.changed();
  }

  send(text, model) {
    const conversation = this.current;
    conversation.title ||= titleOf(text);
    conversation.messages = [...conversation.messages, { id: newId(), role: "user", content: text }];
    keepText(CURRENT, conversation.id);
    return this.answer(conversation, model);
  }

  /** Replace the user's message at `index`, and answer it; what came after it is removed. */
  edit(index, text, model) {
    const conversation = this.current;
    const edited = { id: newId(), role: "user", content: text };
    conversation.messages = [...conversation.messages.slice(0, index), edited];
    return this.answer(conversation, model);
  }

  /** Generate the answer at `index` again; what came after it is removed. */
  retry(index, model) {
    const conversation = this.current;
    conversation.messages = conversation.messages.slice(0, index);
    return this.answer(conversation, model);
  }

  /** Send results of the tool calls of the last answer: {id of the call: text}. */
  sendResults(results, model) {
    const conversation = this.current;
    const added = Object.entries(results).map(([toolCallId, content]) => ({
      id: newId(), role: "tool", toolCallId, content,
    }));
    conversation.messages = [...conversation.messages, ...added];
    return this.answer(conversation, model);
  }

  stop() {
    this.running.get(this.current?.id)?.controller.abort();
  }

  async answer(conversation, model) {
    if (this.running.has(conversation.id)) return;
    const asked = conversation.messages;
    const answer = emptyAnswer(model);
    const controller = new AbortController();
    this.running.set(conversation.id, { controller, conversation });
    let savedAt = Date.now();
    const show = () => {
      conversation.messages = [...asked, { ...answer, toolCalls: answer.toolCalls.map((call) => ({ ...call })) }];
      if (Date.now() - savedAt > SAVE_INTERVAL_MS) {
        savedAt = Date.now();
        this.save(conversation);
      }
      if (conversation === this.current) this.changed();
    };
    let frame = 0; // a fast stream renders once a frame, not for every token
    const showSoon = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        show();
      });
    };
    show();
    this.save(conversation);
    try {
      answer.model = model || (await this.firstModel());
      const body = requestBody(answer.model, asked, conversation.parameters);
      await generate(this.api, body, answer, controller.signal, showSoon);
    } catch (error) {
      Object.assign(answer, { isRunning: false, error: { message: error.message, code: error.code ?? "" } });
    }
    cancelAnimationFrame(frame);
    if (!this.running.has(conversation.id)) return; // deleted in the meantime
    this.running.delete(conversation.id);
    show();
    await this.save(conversation);
    this.changed();
  }

  async save(conversation, withMessages = true) {
    const { messages, ...kept } = conversation;
    const meta = { ...kept, updated: Date.now(), count: messages.length };
    conversation.updated = meta.updated;
    this.conversations = [meta, ...this.conversations.filter((each) => each.id !== meta.id)];
    await this.keep(meta, withMessages ? messages : undefined);
  }

  async keep(meta, messages) {
    try {
      await this.store.save(meta, messages);
    } catch {
      this.notice = "The browser's storage is full: this conversation is not kept. Delete others to make room.";
      this.changed();
    }
  }
}

function newId() {
  return crypto.randomUUID?.() ?? String(Math.random());
}

function titleOf(text) {
  const line = text.trim().split("\n")[0].replace(/[*_`#>|]+/g, "").trim() || "Conversation";
  return line.length > MAX_TITLE_CHARS ? `${line.slice(0, MAX_TITLE_CHARS - 1)}…` : line;
}

/** Return a message as it is after the page was loaded again: no answer is being generated any more. */
function withoutRun(message) {
  return message.isRunning ? { ...message, isRunning: false, isStopped: true } : message;
}

function keptParameters() {
  try {
    return { system: "", ...JSON.parse(keptText(PARAMETERS) ?? "{}") };
  } catch {
    return { system: "" };
  }
}
