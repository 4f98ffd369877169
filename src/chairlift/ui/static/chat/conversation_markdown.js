// A conversation as Markdown text: what is shown of it, without other versions.

/** Return the text; `messages` are those that are shown. */
export function markdownOf({ title, parameters, messages }) {
  const parts = [`# ${(title || "Conversation").replace(/\s+/g, " ")}`];
  if (parameters?.system?.trim()) parts.push(`## System prompt\n\n${parameters.system.trim()}`);
  for (const message of messages) parts.push(sectionOf(message));
  return `${parts.join("\n\n")}\n`;
}

function sectionOf({ role, content, files, reasoning, toolCalls, model, isJson }) {
  if (role === "user") {
    const blocks = (files ?? []).map(({ name, text }) => `File \`${name.replace(/`/g, "")}\`:\n\n${fenced(text)}`);
    return ["## You", ...blocks, content.trim()].join("\n\n").trimEnd();
  }
  if (role === "tool") return `## Tool result\n\n${fenced(content)}`;
  const parts = [`## Answer${model ? ` of ${model}` : ""}`];
  if (reasoning) parts.push(quoted(`Reasoning:\n\n${reasoning.trim()}`));
  if (content.trim()) parts.push(isJson ? fenced(content, "json") : content.trim());
  for (const call of toolCalls ?? []) parts.push(`Tool call \`${call.name}\`:\n\n${fenced(call.text, "json")}`);
  return parts.join("\n\n");
}

function quoted(text) {
  return text.split("\n").map((line) => `> ${line}`.trimEnd()).join("\n");
}

/** Return a text as a code block, whose fence is longer than any in the text. */
export function fenced(text, language = "") {
  const longest = (text.match(/`+/g) ?? []).reduce((most, ticks) => Math.max(most, ticks.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.trimEnd()}\n${fence}`;
}
