// ChatModel: the conversations, the open one, and the answers that are being generated; it outlives the view.
import { keepText, keptText } from "../lib/kept.js";
import { ConversationStore } from "./conversation_store.js";
import { ConversationWriter, metaOf } from "./conversation_writer.js";
import { OtherTabs } from "./other_tabs.js";
import { emptyAnswer, generate, requestBody } from "./generation.js";

const PARAMETERS = "chairlift.parameters";
const CURRENT = "chairlift.conversation";
const SAVE_INTERVAL_MS = 2000;
const MAX_TITLE_CHARS = 60;
const FULL = "The browser's storage is full: this conversation is not kept. Delete others to make room.";
const NOT_KEPT = "The browser could not keep this conversation.";

export class ChatModel {
  /** `firstModel` returns a model's name where a message is sent without one. */
  constructor(api, firstModel) {
    this.api = api;
    this.firstModel = firstModel;
    this.store = new ConversationStore();
    this.writer = new ConversationWriter(this.store);
    this.conversations = []; // as the list shows them
    this.current = null; // {id, title, parameters, messages, ...}; messages are replaced, never changed
    this.running = new Map(); // id of a conversation -> {controller, conversation, show}
    this.notice = "";
    this.isLoaded = false;
    this.tabs = new OtherTabs((change) => this.onOtherTab(change));
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
    window.addEventListener("pagehide", () => this.leave());
    window.addEventListener("pageshow", ({ persisted }) => persisted && this.writer.unflush());
    try {
      await this.writer.recover();
    } catch (error) {
      this.notice = noticeOf(error);
    }
    try {
      this.conversations = await this.store.list();
    } catch {
      this.notice = "The kept conversations could not be read.";
      return this.create();
    }
    if (!(await this.store.isPersistent())) this.notice = "This browser keeps no conversations in this window.";
    const last = keptText(CURRENT);
    const found = this.conversations.find(({ id }) => id === last);
    if (found) await this.open(found.id);
    else this.create();
  }

  /** Write what is not kept yet at once: the page goes away. */
  leave() {
    for (const { conversation, show } of this.running.values()) {
      show();
      this.writer.mark(conversation);
    }
    this.writer.flush();
  }

  /** Open a new conversation; it joins the list with its first message. */
  create() {
    this.current = {
      id: crypto.randomUUID?.() ?? String(Math.random()), title: "", updated: Date.now(), messages: [], revision: null,
      parameters: keptParameters(),
    };
    keepText(CURRENT, null);
    this.changed();
  }

  async open(id) {
    const held = this.running.get(id)?.conversation ?? this.writer.find(id);
    if (held) this.current = held;
    else {
      const found = this.conversations.find((each) => each.id === id);
      if (!found) return;
      let messages;
      try {
        messages = await this.store.messages(id);
      } catch {
        this.say("This conversation could not be read.");
        if (!this.current) this.create();
        return;
      }
      this.current = { revision: null, ...found, messages: messages.map(withoutRun) };
      this.writer.adopt(this.current);
    }
    keepText(CURRENT, id);
    this.changed();
  }

  async rename(id, title) {
    const name = title.trim().slice(0, MAX_TITLE_CHARS);
    if (!name) return;
    this.conversations = this.conversations.map((each) => (each.id === id ? { ...each, title: name } : each));
    for (const each of [this.current, this.running.get(id)?.conversation, this.writer.find(id)]) {
      if (each?.id === id) each.title = name;
    }
    this.changed();
    try {
      await this.store.rename(id, name);
      this.tabs.tell({ id });
    } catch {
      this.say("The new title could not be kept.");
    }
  }

  async remove(id) {
    this.takeOff(id);
    if (this.current?.id === id) this.create();
    this.changed();
    try {
      await this.writer.remove(id);
      this.tabs.tell({ id, isRemoved: true });
    } catch {
      this.say("The conversation could not be deleted from the browser's storage.");
    }
  }

  takeOff(id) {
    this.running.get(id)?.controller.abort();
    this.running.delete(id);
    this.writer.forget(id);
    this.conversations = this.conversations.filter((each) => each.id !== id);
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
    if (this.isRunning) return undefined;
    conversation.title ||= titleOf(text);
    conversation.messages = [...conversation.messages, { id: newId(), role: "user", content: text }];
    keepText(CURRENT, conversation.id);
    return this.answer(conversation, model);
  }

  /** Replace the user's message at `index`, and answer it; what came after it is removed. */
  edit(index, text, model) {
    const conversation = this.current;
    if (this.isRunning) return undefined;
    const edited = { id: newId(), role: "user", content: text };
    conversation.messages = [...conversation.messages.slice(0, index), edited];
    return this.answer(conversation, model);
  }

  /** Generate the answer at `index` again; what came after it is removed. */
  retry(index, model) {
    const conversation = this.current;
    if (this.isRunning) return undefined;
    conversation.messages = conversation.messages.slice(0, index);
    return this.answer(conversation, model);
  }

  /** Send results of the tool calls of the last answer: {id of the call: text}. */
  sendResults(results, model) {
    const conversation = this.current;
    if (this.isRunning) return undefined;
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
    this.running.set(conversation.id, { controller, conversation, show });
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
    conversation.updated = Date.now();
    const { id } = conversation;
    this.conversations = [metaOf(conversation), ...this.conversations.filter((each) => each.id !== id)];
    const isSaving = this.writer.isSaving(id); // then the save that is under way takes this change, too
    try {
      const saving = this.writer.save(conversation, withMessages);
      if (isSaving) return;
      const outcome = await saving;
      if (outcome !== "kept") return await this.onConflict(conversation, outcome);
      const { revision } = conversation;
      this.conversations = this.conversations.map((each) => (each.id === id ? { ...each, revision } : each));
      this.tabs.tell({ id });
      if ([FULL, NOT_KEPT].includes(this.notice)) this.say("");
    } catch (error) {
      if (!isSaving) this.say(noticeOf(error));
    }
  }

  say(notice) {
    this.notice = notice;
    this.changed();
  }

  /** Another tab changed or deleted a conversation that this one was about to keep. */
  async onConflict(conversation, outcome) {
    if (outcome === "deleted") return this.drop(conversation.id);
    const running = this.running.get(conversation.id);
    this.running.delete(conversation.id);
    const { id } = conversation;
    Object.assign(conversation, { id: newId(), revision: null, title: `${conversation.title} (copy)` });
    if (running) this.running.set(conversation.id, running);
    if (conversation === this.current) keepText(CURRENT, conversation.id);
    this.notice = "Another tab changed this conversation; what you see here is kept as a copy.";
    await this.readList(id);
    await this.save(conversation);
    this.changed();
  }

  async onOtherTab({ id, isRemoved }) {
    if (!this.isLoaded) return;
    if (isRemoved) return this.drop(id);
    await this.readList(id);
    const title = this.conversations.find((each) => each.id === id)?.title;
    const running = this.running.get(id);
    if (running && title) running.conversation.title = title;
    if (!running && this.current?.id === id) await this.open(id);
    this.changed();
  }

  /** Take a conversation off that is no longer in the storage. */
  drop(id) {
    this.takeOff(id);
    if (this.current?.id === id) {
      this.notice = "Another tab deleted the conversation that was open here.";
      this.create();
    }
    this.changed();
  }

  /** Read what the list shows of one conversation again. */
  async readList(id) {
    try {
      const stored = (await this.store.list()).filter((each) => each.id === id);
      const others = this.conversations.filter((each) => each.id !== id);
      this.conversations = [...stored, ...others].sort((one, other) => other.updated - one.updated);
    } catch {
      this.say("The kept conversations could not be read.");
    }
  }
}

function noticeOf(error) {
  return error?.name === "QuotaExceededError" ? FULL : NOT_KEPT;
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
