// What the page says when the browser does not store a conversation.
const FULL = "The browser's storage is full: this conversation is not kept. Delete others to make room.";
const NOT_KEPT = "The browser could not keep this conversation.";

/** Return the notice for an error of ConversationWriter. */
export function storageNotice(error) {
  return error?.name === "QuotaExceededError" ? FULL : NOT_KEPT;
}

/** Return whether a notice says that a conversation is not kept, which is over when the storage takes one again. */
export function isStorageNotice(notice) {
  return [FULL, NOT_KEPT].includes(notice);
}
