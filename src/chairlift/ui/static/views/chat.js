// The chat view: conversations at the side, the messages of the open one, the field for the next message, and settings.
import { useAnswerAnnouncements, useConversationAnnouncements } from "../chat/announcements.js";
import { ChatModel } from "../chat/chat_model.js";
import { ContextMeter } from "../chat/context_meter.js";
import { Composer } from "../chat/composer.js";
import { ConversationList } from "../chat/conversation_list.js";
import { ExportDialog } from "../chat/export_dialog.js";
import { Message } from "../chat/message.js";
import { MessageList } from "../chat/message_list.js";
import { versionsOf } from "../chat/message_tree.js";
import { ParametersPanel } from "../chat/parameters_panel.js";
import { useDrawers } from "../chat/drawers.js";
import { useFileDrop } from "../chat/file_drop.js";
import { UnsentFiles } from "../chat/unsent_files.js";
import { html, useCallback, useChanges, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { IconButton } from "../shell/icons.js";

const SUGGESTIONS = [
  "Explain continuous batching in three sentences.",
  "Write a Python function that finds prime numbers.",
  "Compare tea and coffee in a table.",
];

let unsentFiles = null;
let chatModel = null; // one for the page: answers go on while another view is open

export function View({ api, settings }) {
  chatModel ??= new ChatModel(api, () => settings.server.firstModel());
  const chat = chatModel;
  useChanges(chat);
  unsentFiles ??= new UnsentFiles();
  const isDropping = useFileDrop((files) => unsentFiles.add(files));
  const { list, panel } = useDrawers();
  const [edits, setEdits] = useState(new Map()); // id of a message -> its text in the editor, also out of sight
  const [isExporting, setIsExporting] = useState(false);
  const [target, setTarget] = useState(null); // the message to scroll to
  const name = useRef("");
  name.current = settings.model;
  useEffect(() => {
    chat.load();
  }, []);
  const actions = useMemo(() => {
    const setEdit = (id, text) => setEdits((before) => {
      const others = [...before].filter(([each]) => each !== id);
      return new Map(text === null ? others : [...others, [id, text]]);
    });
    return {
      setEdit,
      edit: (id, text, files) => {
        const index = chat.current.messages.findIndex((message) => message.id === id);
        if (chat.isRunning || index < 0) return;
        if (chat.edit(index, text, name.current, files) !== false) setEdit(id, null);
      },
      retry: (index) => chat.retry(index, name.current),
      goOn: () => {
        const { model } = chat.current.messages.at(-1);
        chat.goOn(settings.server.models.includes(model) ? model : name.current);
      },
      showVersion: (id, button) => {
        chat.showVersion(id);
        setTarget({ id, button });
      },
      sendResults: (results) => chat.sendResults(results, name.current),
    };
  }, []);
  const send = useCallback((text, files) => chat.send(text, name.current, files), []);
  const open = useCallback(async (id, messageId) => {
    list.close();
    await (messageId ? chat.openAt(id, messageId) : chat.open(id));
    setTarget(messageId && { id: messageId });
  }, []);
  const { current, isRunning } = chat;
  const { nodes, leaf } = current ?? { nodes: [] };
  const versions = useMemo(() => versionsOf(nodes), [current?.id, nodes.length, leaf]);
  const card = settings.server.cards.get(settings.model);
  useFailureCheck(current, settings.server);
  useAnswerAnnouncements(current, isRunning);
  useConversationAnnouncements(chat.conversations);
  if (!current) return html`<div class="empty-state" aria-busy="true"></div>`;
  const renderMessage = (message, index) => html`<${Message} message=${message} index=${index} actions=${actions}
    isLast=${index === current.messages.length - 1} isBusy=${isRunning} edited=${edits.get(message.id)}
    versions=${versions.get(message.id)} />`;
  return html`<div class="chat ${list.isOpen ? "list-open" : ""} ${panel.isOpen ? "panel-open" : ""}">
    <div class="backdrop" onClick=${list.close}></div>
    <nav class="sidebar" aria-label="Conversations">
      <${ConversationList} model=${chat} onOpen=${open} onChoose=${list.close} />
    </nav>
    <section class="conversation-pane" aria-label="Conversation" inert=${list.isOpen}>
      ${isDropping && html`<div class="drop-hint" aria-hidden="true">Drop text files or PDFs to attach them</div>`}
      <div class="pane-head">
        <${IconButton} class="list-button" icon="menu" label="Conversations" aria-expanded=${list.isOpen}
          onClick=${list.toggle} />
        <h1 dir="auto">${current.title || "New conversation"}</h1>
        ${current.messages.length > 0 && html`<${IconButton} icon="export" label="Export this conversation"
          onClick=${() => setIsExporting(true)} />`}
        <${IconButton} icon="settings" label="Settings" aria-expanded=${panel.isOpen}
          onClick=${panel.toggle} />
      </div>
      ${chat.notice && html`<div class="notice" role="alert" data-testid="notice">${chat.notice}
        <${IconButton} icon="close" label="Close this notice" onClick=${() => chat.say("")} /></div>`}
      ${current.messages.length
        ? html`<${MessageList} messages=${current.messages} conversationId=${current.id}
            renderMessage=${renderMessage} target=${target} />`
        : html`<${Welcome} model=${settings.model} onChoose=${send} />`}
      <${ContextMeter} messages=${current.messages} limit=${card?.max_model_len} />
      <${Composer} conversationId=${current.id} isRunning=${isRunning} model=${settings.model} files=${unsentFiles}
        onSend=${send} onStop=${() => chat.stop()} />
    </section>
    ${panel.isOpen && html`<${ParametersPanel} key=${current.id} parameters=${current.parameters}
      presets=${chat.presets} takesEffort=${card?.details?.capabilities?.includes("thinking") ?? true}
      onChange=${(parameters) => chat.setParameters(parameters)} onClose=${panel.close} />`}
    ${isExporting && html`<${ExportDialog} model=${chat} onClose=${() => setIsExporting(false)} />`}
  </div>`;
}

/** Ask for the server's state as soon as an answer fails, so that the page says at once that the server is down. */
function useFailureCheck(current, server) {
  const failure = current?.messages.at(-1)?.error;
  useEffect(() => {
    if (failure) server.check();
  }, [failure]);
}

function Welcome({ model, onChoose }) {
  return html`<div class="welcome">
    <img src="ui/favicon.svg" alt="" width="48" height="48" />
    <h2>Ask ${model || "the model"}</h2>
    <ul>${SUGGESTIONS.map((text) => html`<li key=${text}>
      <button type="button" class="suggestion" onClick=${() => onChoose(text)}>${text}</button></li>`)}</ul>
  </div>`;
}
