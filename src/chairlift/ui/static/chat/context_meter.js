// ContextMeter: how many tokens of the model's context a conversation has used, and how many are left.
import { count as formatCount } from "../lib/format.js";
import { html } from "../lib/html.js";

const LITTLE_SHARE = 0.1;

/**
 * Return {used, limit, left, isLittle} or null where nothing is known. `used` is what the last answer of the shown
 * messages counted, prompt and answer; `limit` is the model's, null where the server or the router does not say it.
 */
export function contextOf(messages, limit) {
  const usage = messages.findLast(({ role, usage: found }) => role === "assistant" && found)?.usage;
  const used = usage ? usage.prompt_tokens + usage.completion_tokens : null;
  if (!Number.isFinite(used)) return null;
  const left = Number.isFinite(limit) ? Math.max(0, limit - used) : null;
  return { used, limit: left === null ? null : limit, left, isLittle: left !== null && left < limit * LITTLE_SHARE };
}

function textOf({ used, limit, left, isLittle }) {
  if (limit === null) return `${formatCount(used)} token${used === 1 ? "" : "s"} of context used`;
  const text = `${formatCount(used)} of ${formatCount(limit)} tokens of context used`;
  if (left === 0) return `${text}: the context is full. Begin a new conversation or edit an earlier message.`;
  return isLittle ? `${text}: only ${formatCount(left)} are left.` : `${text}, ${formatCount(left)} left`;
}

export function ContextMeter({ messages, limit }) {
  const context = contextOf(messages, limit);
  if (!context) return null;
  const { used, limit: most, isLittle } = context;
  const text = textOf(context);
  const share = most === null ? 0 : Math.min(1, used / most);
  return html`<div class="context-meter ${isLittle ? "little" : ""}" data-testid="context">
    ${most !== null && html`<div class="meter" role="meter" aria-label="Context used" aria-valuemin="0"
      aria-valuemax=${most} aria-valuenow=${Math.min(used, most)} aria-valuetext=${text}>
      <i style=${{ width: `${share * 100}%` }}></i></div>`}
    <p role=${isLittle ? "status" : undefined}>${text}</p>
  </div>`;
}
