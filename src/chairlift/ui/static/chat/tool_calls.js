// ToolCalls: the calls of an answer as cards, with a field for the result of each.
import { html, useState } from "../lib/html.js";
import { Icon } from "../shell/icons.js";

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // arguments that are still coming, or that the token limit has cut off
  }
}

/** `isOpen`: the calls are at the end of the conversation and wait for results. */
export function ToolCalls({ message, isOpen, onResults }) {
  const [results, setResults] = useState([]); // in the order of the calls
  const submit = (event) => {
    event.preventDefault();
    onResults(message.toolCalls.map(({ id }, index) => [id, results[index] ?? ""]));
  };
  return html`<form class="tool-calls" onSubmit=${submit}>
    ${message.toolCalls.map((call, index) => html`<section key=${index} class="tool-call" data-testid="tool-call"
        aria-label="Tool call ${call.name}">
      <h3><${Icon} name="tool" />${call.name || "…"}</h3>
      <pre tabindex="0">${prettyJson(call.text)}</pre>
      ${isOpen && html`<label class="field"><span>Result of ${call.name}</span>
        <textarea rows="2" value=${results[index] ?? ""}
          onInput=${(event) => setResults(Object.assign([...results], { [index]: event.target.value }))}></textarea>
      </label>`}
    </section>`)}
    ${isOpen && html`<button type="submit" class="button">
      Send result${message.toolCalls.length > 1 ? "s" : ""}</button>`}
  </form>`;
}
