// Announcements of the chat view: an answer begins, ends or fails, and a conversation is deleted or renamed.
import { announce } from "../lib/announcer.js";
import { useEffect, useRef } from "../lib/html.js";

const MAX_CHARS = 500; // of an answer; its rest is read from the page

/** Announce what happens to the answers of the open conversation; reading every token would be no help. */
export function useAnswerAnnouncements(current, isRunning) {
  const last = useRef({ id: current?.id, isRunning });
  useEffect(() => {
    const { id, isRunning: wasRunning } = last.current;
    last.current = { id: current?.id, isRunning };
    if (current?.id !== id) return; // another conversation was opened: nothing has begun or ended
    if (isRunning && !wasRunning) announce("The answer is being generated.");
    else if (!isRunning && wasRunning) announce(endOf(current.messages.at(-1)));
  }, [isRunning, current?.id]);
}

function endOf({ error, isStopped, content }) {
  if (error) return "The answer failed.";
  return isStopped ? "The answer was stopped." : `The answer is complete: ${content.slice(0, MAX_CHARS)}`;
}

/** Announce changes of the list of conversations: [{id, title}]. */
export function useConversationAnnouncements(conversations) {
  const known = useRef(new Map());
  useEffect(() => {
    const titles = new Map(conversations.map(({ id, title }) => [id, title]));
    for (const [id, title] of known.current) {
      if (!titles.has(id)) announce(`The conversation “${title}” was deleted.`);
      else if (titles.get(id) !== title && title) announce(`The conversation is now called “${titles.get(id)}”.`);
    }
    known.current = titles;
  }, [conversations]);
}
