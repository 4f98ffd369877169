// The title of a conversation: the first line of its first message, unless it is renamed.
export const MAX_TITLE_CHARS = 60;

export function titleOf(text) {
  const line = text.trim().split("\n")[0].replace(/[*_`#>|]+/g, "").trim() || "Conversation";
  return line.length > MAX_TITLE_CHARS ? `${line.slice(0, MAX_TITLE_CHARS - 1)}…` : line;
}
