// The chat view: conversations at the side, the messages of the open one, the field for the next message, and settings.
import { ChatModel } from "../chat/chat_model.js";
import { Composer } from "../chat/composer.js";
import { ConversationList } from "../chat/conversation_list.js";
import { Message } from "../chat/message.js";
import { MessageList } from "../chat/message_list.js";
import { ParametersPanel } from "../chat/parameters_panel.js";
import { html, useCallback, useChanges, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { IconButton } from "../shell/icons.js";

const SUGGESTIONS = [
  "Explain continuous batching in three sentences.",
  "Write a Python function that finds prime numbers.",
  "Compare tea and coffee in a table.",
];

let chatModel = null; // one for the page: answers go on while another view is open

export function View({ api, settings }) {
  chatModel ??= new ChatModel(api, () => settings.server.firstModel());
  const chat = chatModel;
  useChanges(chat);
  const [isListOpen, setIsListOpen] = useState(false);
  const [isPanelOpen, setIsPanelOpen] = useState(false);
  const [edits, setEdits] = useState({}); // id of a message -> its text in the editor, also while it is out of sight
  const name = useRef("");
  name.current = settings.model;
  useEffect(() => {
    chat.load();
  }, []);
  const actions = useMemo(() => {
    const setEdit = (id, text) => setEdits(({ [id]: _, ...others }) => (
      text === null ? others : { ...others, [id]: text }));
    return {
      setEdit,
      edit: (id, text) => {
        const index = chat.current.messages.findIndex((message) => message.id === id);
        if (chat.isRunning || index < 0) return;
        setEdit(id, null);
        chat.edit(index, text, name.current);
      },
      retry: (index) => chat.retry(index, name.current),
      sendResults: (results) => chat.sendResults(results, name.current),
    };
  }, []);
  const send = useCallback((text) => chat.send(text, name.current), []);
  const { current, isRunning } = chat;
  useFailureCheck(current, settings.server);
  if (!current) return html`<div class="empty-state" aria-busy="true"></div>`;
  const renderMessage = (message, index) => html`<${Message} message=${message} index=${index} actions=${actions}
    isLast=${index === current.messages.length - 1} isBusy=${isRunning} edited=${edits[message.id]} />`;
  return html`<div class="chat ${isListOpen ? "list-open" : ""} ${isPanelOpen ? "panel-open" : ""}">
    <div class="backdrop" onClick=${() => setIsListOpen(false)}></div>
    <nav class="sidebar" aria-label="Conversations">
      <${ConversationList} model=${chat} onChoose=${() => setIsListOpen(false)} />
    </nav>
    <section class="conversation-pane" aria-label="Conversation">
      <div class="pane-head">
        <${IconButton} class="list-button" icon="menu" label="Conversations" aria-expanded=${isListOpen}
          onClick=${() => setIsListOpen(!isListOpen)} />
        <h1 dir="auto">${current.title || "New conversation"}</h1>
        <${IconButton} icon="settings" label="Settings" aria-expanded=${isPanelOpen}
          onClick=${() => setIsPanelOpen(!isPanelOpen)} />
      </div>
      ${chat.notice && html`<div class="notice" role="alert" data-testid="notice">${chat.notice}
        <${IconButton} icon="close" label="Close this notice" onClick=${() => chat.say("")} /></div>`}
      ${current.messages.length
        ? html`<${MessageList} messages=${current.messages} conversationId=${current.id}
            renderMessage=${renderMessage} />`
        : html`<${Welcome} model=${settings.model} onChoose=${send} />`}
      <${Announcer} current=${current} isRunning=${isRunning} />
      <${Composer} conversationId=${current.id} isRunning=${isRunning} model=${settings.model} onSend=${send}
        onStop=${() => chat.stop()} />
    </section>
    ${isPanelOpen && html`<${ParametersPanel} key=${current.id} parameters=${current.parameters}
      onChange=${(parameters) => chat.setParameters(parameters)} onClose=${() => setIsPanelOpen(false)} />`}
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

/** Reads to screen readers that an answer has begun and ended; reading every token would be no help. */
function Announcer({ current, isRunning }) {
  const [text, setText] = useState("");
  const wasRunning = useRef(false);
  const shownId = useRef(current.id);
  useEffect(() => {
    if (shownId.current !== current.id) { // another conversation was opened: nothing has begun or ended
      shownId.current = current.id;
      wasRunning.current = isRunning;
      setText("");
      return;
    }
    const last = current.messages.at(-1);
    if (isRunning && !wasRunning.current) setText("The answer is being generated.");
    else if (!isRunning && wasRunning.current && !last?.error) {
      setText(last?.isStopped ? "The answer was stopped." : `The answer is complete: ${last?.content.slice(0, 500)}`);
    }
    wasRunning.current = isRunning;
  }, [isRunning, current.id]);
  return html`<div class="visually-hidden" role="status" data-testid="announcer">${text}</div>`;
}
