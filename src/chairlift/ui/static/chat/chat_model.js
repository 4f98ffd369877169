// ChatModel: the conversations, the open one, and the answers that are being generated; it outlives the view.
import { Changes } from "../lib/changes.js";
import { newId } from "../lib/ids.js";
import { keepText, keptText } from "../lib/kept.js";
import { AnswerRuns } from "./answer_runs.js";
import { addMessage, addResults, addVersion, goBefore } from "./conversation_edits.js";
import { ConversationIndex } from "./conversation_index.js";
import { ConversationSearch } from "./conversation_search.js";
import { ConversationStore } from "./conversation_store.js";
import { MAX_TITLE_CHARS } from "./conversation_title.js";
import { ConversationWriter } from "./conversation_writer.js";
import { newestLeaf, showPath } from "./message_tree.js";
import { OtherTabs } from "./other_tabs.js";
import { firstError, keepParameters, keptParameters } from "./parameter_fields.js";
import { Presets } from "./presets.js";
import { isStorageNotice, storageNotice } from "./storage_notices.js";

const CURRENT = "chairlift.conversation";

export class ChatModel {
  /** `firstModel` returns a model's name where a message is sent without one. */
  constructor(api, firstModel) {
    this.store = new ConversationStore();
    this.writer = new ConversationWriter(this.store);
    this.search = new ConversationSearch(this.store);
    this.presets = new Presets();
    this.index = new ConversationIndex(this.store);
    this.current = null; // {id, title, parameters, nodes, leaf, messages, ...}; messages are replaced, never changed
    this.opening = null; // id of the conversation that is being read; no longer where another one is opened meanwhile
    this.running = new AnswerRuns(api, {
      firstModel, onSave: (conversation) => this.save(conversation),
      onChange: (conversation) => { if (conversation === this.current) this.changes.notify(); },
    });
    this.notice = "";
    this.isLoaded = false;
    this.tabs = new OtherTabs((change) => this.onOtherTab(change));
    this.changes = new Changes();
  }

  /** What the list shows of each conversation; another array after each change. */
  get conversations() {
    return this.index.entries;
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
      this.notice = storageNotice(error);
    }
    try {
      await this.index.load();
    } catch {
      this.notice = "The kept conversations could not be read.";
      return this.create();
    }
    if (!(await this.store.isPersistent())) this.notice = "This browser keeps no conversations in this window.";
    const found = this.index.find(keptText(CURRENT));
    if (found) await this.open(found.id);
    else this.create();
  }

  /** Write what is not kept yet at once: the page goes away. */
  leave() {
    for (const conversation of this.running.showAll()) this.writer.mark(conversation);
    this.writer.flush();
  }

  /** Open a new conversation; it joins the list with its first message. */
  create() {
    this.opening = null;
    this.current = {
      id: newId(), title: "", updated: Date.now(), nodes: [], leaf: null, messages: [], revision: null,
      parameters: keptParameters(),
    };
    keepText(CURRENT, null);
    this.changes.notify();
  }

  /** Return a conversation that is not kept as it is now, because its answer comes or it waits for the store. */
  held(id) {
    return this.running.conversation(id) ?? this.writer.find(id);
  }

  /** Open a conversation; `isInOtherTab` says that another tab generates an answer of it. */
  async open(id, isInOtherTab = false) {
    let opened = this.held(id);
    if (!opened) {
      const found = this.index.find(id);
      if (!found) return;
      this.opening = id;
      try {
        opened = await this.writer.read(found, isInOtherTab);
      } catch {
        this.say("This conversation could not be read.");
        if (!this.current) this.create();
        return;
      }
      if (this.opening !== id) return;
      opened = this.held(id) ?? opened; // an answer may have begun meanwhile
    }
    this.opening = null;
    this.current = opened;
    keepText(CURRENT, id);
    this.changes.notify();
  }

  async rename(id, title) {
    const name = title.trim().slice(0, MAX_TITLE_CHARS);
    if (!name) return;
    this.index.change(id, { title: name });
    for (const each of [this.current, this.running.conversation(id), this.writer.find(id)]) {
      if (each?.id === id) each.title = name;
    }
    this.changes.notify();
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
    this.changes.notify();
    try {
      await this.writer.remove(id);
      this.tabs.tell({ id, isRemoved: true });
    } catch {
      this.say("The conversation could not be deleted from the browser's storage.");
    }
  }

  takeOff(id) {
    if (this.opening === id) this.opening = null;
    this.running.drop(id);
    this.writer.forget(id);
    this.index.remove(id);
  }

  /** Change settings of the open conversation; new ones begin with them, without system prompt, schema and preset. */
  setParameters(parameters) {
    this.current.parameters = parameters;
    keepParameters(parameters);
    if (this.current.messages.length) this.save(this.current, false);
    this.changes.notify();
  }

  /** Return whether a message may be sent now; says what is wrong with the settings where they are the reason. */
  maySend() {
    if (this.isRunning) return false;
    const error = firstError(this.current.parameters);
    if (error) this.say(`Nothing was sent. ${error}`);
    return !error;
  }

  /** Send a message with its text and files, as ./attachments.js has them. Returns false where nothing is sent. */
  send(text, model, files = []) {
    if (!this.maySend()) return false;
    addMessage(this.current, text, files);
    keepText(CURRENT, this.current.id);
    return this.running.answer(this.current, model);
  }

  /** Answer another version of the user's message at `index`. */
  edit(index, text, model, files = []) {
    if (!this.maySend()) return false;
    addVersion(this.current, index, text, files);
    return this.running.answer(this.current, model);
  }

  /** Generate another version of the answer at `index`. */
  retry(index, model) {
    if (!this.maySend()) return false;
    goBefore(this.current, index);
    return this.running.answer(this.current, model);
  }

  /** Continue the last answer, which was cut. */
  goOn(model) {
    return this.maySend() && this.running.goOn(this.current, model);
  }

  /** Send results of the tool calls of the last answer: [id of the call, text] of each. */
  sendResults(results, model) {
    if (!this.maySend()) return false;
    addResults(this.current, results);
    return this.running.answer(this.current, model);
  }

  /** Show the version of a message with this id, and the newest messages behind it. */
  showVersion(id) {
    if (this.isRunning) return;
    const { nodes } = this.current;
    showPath(this.current, nodes, newestLeaf(nodes, id));
    // While another tab generates an answer, it alone keeps the conversation; a change here would make that a copy.
    if (!nodes.some(({ isInOtherTab }) => isInOtherTab)) this.save(this.current, false);
    this.changes.notify();
  }

  /** Open a conversation with a path that has the message with this id. */
  async openAt(id, messageId) {
    await this.open(id);
    if (this.current?.id !== id || this.current.messages.some((message) => message.id === messageId)) return;
    this.showVersion(messageId);
  }

  stop() {
    this.running.stop(this.current?.id);
  }

  async save(conversation, withMessages = true) {
    conversation.updated = Date.now();
    const { id } = conversation;
    this.index.putFirst(conversation);
    const isSaving = this.writer.isSaving(id); // then the save that is under way takes this change, too
    try {
      const saving = this.writer.save(conversation, withMessages);
      if (isSaving) return;
      const outcome = await saving;
      if (outcome !== "kept") return await this.onConflict(conversation, outcome);
      this.index.change(id, { revision: conversation.revision });
      this.tabs.tell({ id, isRunning: this.running.has(id) });
      if (isStorageNotice(this.notice)) this.say("");
    } catch (error) {
      if (!isSaving) this.say(storageNotice(error));
    }
  }

  /** Take conversations into the list, as it shows them, that were put into the storage. */
  adopt(metas) {
    this.index.add(metas);
    this.tabs.tell({ ids: metas.map(({ id }) => id) });
    this.changes.notify();
  }

  say(notice) {
    this.notice = notice;
    this.changes.notify();
  }

  /** Another tab changed or deleted a conversation that this one was about to keep. */
  async onConflict(conversation, outcome) {
    if (outcome === "deleted") return this.drop(conversation.id);
    const { id } = conversation;
    Object.assign(conversation, { id: newId(), revision: null, title: `${conversation.title} (copy)` });
    this.running.changeId(id, conversation.id);
    if (conversation === this.current) keepText(CURRENT, conversation.id);
    this.notice = "Another tab changed this conversation; what you see here is kept as a copy.";
    await this.readList([id]);
    await this.save(conversation);
    this.changes.notify();
  }

  async onOtherTab({ id, ids = [id], isRemoved, isRunning }) {
    if (!this.isLoaded) return;
    if (isRemoved) return this.drop(id);
    await this.readList(ids);
    const title = this.index.find(id)?.title;
    const running = this.running.conversation(id);
    if (running && title) running.title = title;
    if (!running && this.current?.id === id && [null, id].includes(this.opening)) await this.open(id, isRunning);
    this.changes.notify();
  }

  /** Take a conversation off that is no longer in the storage. */
  drop(id) {
    this.takeOff(id);
    if (this.current?.id === id) {
      this.notice = "Another tab deleted the conversation that was open here.";
      this.create();
    }
    this.changes.notify();
  }

  /** Read what the list shows of the conversations with these ids again. */
  async readList(ids) {
    try {
      await this.index.reload(ids);
    } catch {
      this.say("The kept conversations could not be read.");
    }
  }
}
