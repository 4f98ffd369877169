// ParametersPanel: the system prompt and the sampling settings of a conversation; an empty field leaves the default.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { IconButton } from "../shell/icons.js";

const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.05, hint: "share of probability to sample from" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "longest answer" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "same seed, same answer" },
];

function toolsError(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Tools are a JSON list, as in the OpenAI API.";
  } catch (error) {
    return `This is not valid JSON: ${error.message}`;
  }
}

export function ParametersPanel({ parameters, onChange, onClose }) {
  const panel = useRef();
  const [tools, setTools] = useState(parameters.tools ?? "");
  const change = (name, value) => onChange({ ...parameters, [name]: value });
  const error = toolsError(tools);
  useEffect(() => panel.current.querySelector("textarea").focus(), []);
  const changeTools = (text) => {
    setTools(text);
    if (!toolsError(text)) change("tools", text);
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") onClose();
  };
  return html`<aside ref=${panel} class="panel" aria-label="Settings of this conversation" onKeyDown=${onKeyDown}>
    <header><h2>Settings</h2><${IconButton} icon="close" label="Close settings" onClick=${onClose} /></header>
    <label class="field"><span>System prompt</span>
      <textarea rows="5" value=${parameters.system ?? ""} data-testid="system"
        placeholder="How the model should answer, for this conversation"
        onInput=${(event) => change("system", event.target.value)}></textarea>
    </label>
    <div class="field-grid">
      ${NUMBERS.map(({ name, label, hint, ...limits }) => html`<label key=${name} class="field"><span>${label}</span>
        <input type="number" inputmode="decimal" value=${parameters[name] ?? ""} placeholder="default" ...${limits}
          title=${hint} data-testid=${name} onInput=${(event) => {
            const { value, valueAsNumber } = event.target;
            change(name, value === "" ? null : valueAsNumber);
          }} />
      </label>`)}
    </div>
    <label class="field"><span>Stop texts, one a line</span>
      <textarea rows="2" value=${parameters.stop ?? ""}
        onInput=${(event) => change("stop", event.target.value)}></textarea>
    </label>
    <label class="field"><span>Tools (JSON)</span>
      <textarea class="mono" rows="5" value=${tools} spellcheck=${false} aria-invalid=${error !== ""}
        aria-describedby="tools-error" data-testid="tools"
        placeholder='[{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]'
        onInput=${(event) => changeTools(event.target.value)}></textarea>
      <span id="tools-error" class="field-error" role="status">${error}</span>
    </label>
    <p class="hint">Empty fields leave the choice to the server. New conversations begin with these settings, without
      the system prompt.</p>
  </aside>`;
}
