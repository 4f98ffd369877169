// A generation: the body of a chat request, and the answer that its stream brings.
import { newId } from "../lib/ids.js";
import { contentWithFiles } from "./attachments.js";
import { bodyFields } from "./parameter_fields.js";

const MIN_RATE_SECONDS = 0.1; // tokens that came in less time, as those of one chunk do, say nothing about the speed

/** Return the body of a request for the next answer. `parameters` are the settings of the conversation. */
export function requestBody(model, messages, parameters) {
  return {
    model, messages: requestMessages(messages, parameters.system), stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true }, ...bodyFields(parameters),
  };
}

function requestMessages(messages, system) {
  const sent = system?.trim() ? [{ role: "system", content: system }] : [];
  for (const message of messages) {
    if (message.role !== "assistant") {
      const call = message.role === "tool" ? { tool_call_id: message.toolCallId } : {};
      sent.push({ role: message.role, content: contentWithFiles(message), ...call });
    } else if (message.toolCalls?.length) {
      sent.push({
        role: "assistant", content: message.content || null,
        tool_calls: message.toolCalls.map(({ id, name, text }) => ({
          id, type: "function", function: { name, arguments: text },
        })),
        ...(message.reasoning ? { reasoning_content: message.reasoning } : {}),
      });
    } else if (message.content) {
      const isContinued = message.isRunning && message.reasoning; // the reasoning that its text came from
      const reasoning = isContinued ? { reasoning_content: message.reasoning } : {};
      sent.push({ role: "assistant", content: message.content, ...reasoning });
    }
  }
  return sent;
}

/** Return an answer without content. */
export function emptyAnswer(model) {
  return {
    id: newId(), role: "assistant", model, content: "", reasoning: "",
    toolCalls: [], isRunning: true,
  };
}

/**
 * Run a generation. `answer` grows, and `onChange` is called after each change.
 * Never raises: `answer.error` has the failure, and `answer.isStopped` says that `signal` was aborted.
 */
export async function generate(api, body, answer, signal, onChange) {
  const clock = { sent: performance.now(), first: 0, last: 0, chunks: 0, usage: null };
  try {
    let isComplete = false;
    const onResponse = ({ headers }) => { answer.ignored = headers.get("x-ignored-parameters") ?? ""; };
    for await (const { event, data } of api.events("/v1/chat/completions", { body, signal, onResponse })) {
      if (data === "[DONE]") isComplete = true;
      else {
        const value = JSON.parse(data);
        if (event === "error" || value.error) throw failureOf(value.error ?? value);
        apply(value, answer, clock);
      }
      onChange();
    }
    if (!isComplete && !answer.finish) throw { message: "The connection ended before the answer was complete." };
  } catch (error) {
    if (signal.aborted) answer.isStopped = true;
    else answer.error = described(error);
  }
  answer.isRunning = false;
  answer.stats = statsOf(clock);
  onChange();
}

function failureOf({ message, code }) {
  return Object.assign(new Error(message), { code });
}

function described(error) {
  if (error instanceof TypeError) return { message: "The connection to the server was lost.", code: "unreachable" };
  return { message: error.message, code: error.code ?? "", retryAfter: error.retryAfter ?? null };
}

function apply(chunk, answer, clock) {
  if (chunk.usage) answer.usage = clock.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  if (delta.content || reasoning || delta.tool_calls) {
    clock.last = performance.now();
    clock.first ||= clock.last;
    clock.chunks += 1;
  }
  answer.content += delta.content ?? "";
  answer.reasoning += reasoning;
  for (const part of delta.tool_calls ?? []) {
    const call = (answer.toolCalls[part.index] ??= { id: "", name: "", text: "" });
    call.id ||= part.id ?? "";
    call.name += part.function?.name ?? "";
    call.text += part.function?.arguments ?? "";
  }
}

/** Return the times of an answer; the number of tokens is that of the server, else that of the chunks. */
function statsOf({ usage, first, last, sent, chunks }) {
  if (!first) return null;
  const tokens = usage?.completion_tokens ?? chunks;
  const seconds = (last - first) / 1000;
  const isLongEnough = chunks > 1 && seconds >= MIN_RATE_SECONDS;
  return {
    ttft: (first - sent) / 1000, tokens, isCounted: Boolean(usage), seconds,
    prompt: usage?.prompt_tokens ?? null, cached: usage?.prompt_tokens_details?.cached_tokens ?? null,
    rate: isLongEnough ? (tokens * (1 - 1 / chunks)) / seconds : null, // the first chunk began the time
  };
}

/** Return the seconds of an answer's tokens; answers of earlier versions of the page do not have them. */
export function secondsOf({ seconds, tokens, rate }) {
  return seconds ?? (tokens - 1) / rate;
}

/** Return tokens a second of kept times, null where they came too fast to say it, as earlier versions kept it. */
export function rateOf(stats) {
  return stats.rate && secondsOf(stats) >= MIN_RATE_SECONDS ? stats.rate : null;
}
