// Edits of a conversation's messages by its user: each shows the path on which the next answer comes.
import { newId } from "../lib/ids.js";
import { titleOf } from "./conversation_title.js";
import { append, showPath, withoutEmpty } from "./message_tree.js";

/** Add a message of the user with its text and files behind the shown ones. */
export function addMessage(conversation, text, files) {
  conversation.title ||= titleOf(text.trim() ? text : (files[0]?.name ?? ""));
  const message = { id: newId(), role: "user", content: text, ...(files.length ? { files } : {}) };
  append(conversation, conversation.leaf, [message]);
}

/** Add another version of the user's message at `index`; the earlier one stays beside it. */
export function addVersion(conversation, index, text, files) {
  const { files: _, ...earlier } = conversation.messages[index];
  const message = { ...earlier, id: newId(), content: text, ...(files.length ? { files } : {}) };
  append(conversation, earlier.parent, [message]);
}

/** Go back before the answer at `index`, which stays as a version if it has any content. */
export function goBefore(conversation, index) {
  const earlier = conversation.messages[index];
  const asked = conversation.messages[index - 1]?.id ?? null;
  showPath(conversation, withoutEmpty(conversation.nodes, earlier), asked);
}

/** Add results of the tool calls of the last answer: [id of the call, text] of each, in their order. */
export function addResults(conversation, results) {
  const added = results.map(([toolCallId, content]) => ({
    id: newId(), role: "tool", toolCallId, content,
  }));
  append(conversation, conversation.leaf, added);
}
