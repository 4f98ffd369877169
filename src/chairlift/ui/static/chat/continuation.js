// Continuation: which answers that were cut can go on where they ended, and what a continuation adds up to.
import { generate, rateOf, requestBody, secondsOf } from "./generation.js";

/** Return whether an answer was cut: stopped, at the token limit, or broken off by a failure. */
function isCut(message) {
  const { isRunning, isInOtherTab, isStopped, finish, error } = message;
  return !isRunning && !isInOtherTab && Boolean(isStopped || finish === "length" || error);
}

/**
 * Return {isPossible, reason}. The server continues the text of a final message (`continue_final_message`), so an
 * answer that has begun nothing else goes on; `reason` says why another one cannot, "" where there is nothing to say.
 */
export function continuationOf(message) {
  if (!isCut(message)) return { isPossible: false, reason: "" };
  if (message.toolCalls?.length) return impossible("within a tool call");
  if (!message.content.trim()) {
    return message.reasoning ? impossible("within its reasoning") : { isPossible: false, reason: "" };
  }
  if (message.isJson) return impossible("before its JSON was complete, and the schema holds for a whole answer");
  return { isPossible: true, reason: "" };
}

function impossible(place) {
  return { isPossible: false, reason: `This answer was cut ${place}; it cannot be continued, only generated again.` };
}

/** Return an answer that goes on. White space at its end is left out, as many chat templates do; it comes again. */
export function begunAgain(message) {
  const { error: _error, isStopped: _isStopped, finish: _finish, ...kept } = message;
  return { ...kept, toolCalls: [], content: message.content.trimEnd(), isRunning: true };
}

/** Continue `answer`, which begunAgain made of `original`; otherwise as generate(). */
export async function continueAnswer(api, asked, parameters, original, answer, signal, onChange) {
  const begun = answer.content;
  // A schema that was set meanwhile is left out: it would hold for the rest of the text alone.
  const { response_format: _, ...fields } = requestBody(answer.model, [...asked, answer], parameters);
  await generate(api, { ...fields, continue_final_message: true }, answer, signal, onChange);
  if (answer.content === begun) answer.content = original.content;
  answer.stats = sumOf(original.stats, answer.stats);
  onChange();
}

/** Return the times and counts of an answer that came in two parts; the prompt is that of the first one. */
export function sumOf(first, second) {
  if (!first || !second) return first ?? second;
  const timed = [first, second].filter(rateOf);
  const seconds = timed.reduce((sum, part) => sum + secondsOf(part), 0);
  return {
    ttft: first.ttft, tokens: first.tokens + second.tokens, isCounted: first.isCounted && second.isCounted,
    prompt: first.prompt, cached: first.cached, seconds,
    rate: seconds > 0 ? timed.reduce((sum, part) => sum + part.rate * secondsOf(part), 0) / seconds : null,
  };
}
