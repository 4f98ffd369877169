// ParametersPanel: the preset, system prompt and settings of a conversation; an empty field leaves the default.
import { html, useState } from "../lib/html.js";
import { IconButton } from "../shell/icons.js";
import { EFFORTS, errorOf, NUMBERS, numberValue, shownValue } from "./parameter_fields.js";
import { PresetPicker } from "./preset_picker.js";

/** `takesEffort` says whether the model reads a reasoning effort. */
export function ParametersPanel({ parameters, presets, takesEffort, onChange, onClose }) {
  const change = (name, value) => onChange({ ...parameters, [name]: value });
  const onKeyDown = (event) => {
    if (event.key === "Escape") onClose();
  };
  const text = { parameters, change };
  return html`<aside class="panel" aria-label="Settings of this conversation" onKeyDown=${onKeyDown}>
    <header><h2>Settings</h2><${IconButton} icon="close" label="Close settings" onClick=${onClose} /></header>
    <${PresetPicker} presets=${presets} parameters=${parameters} onChange=${onChange} />
    <${TextField} ...${text} name="system" label="System prompt" rows="5"
      placeholder="How the model should answer, for this conversation" />
    <div class="field-grid">
      ${NUMBERS.map((field) => html`<${NumberField} key=${field.name} field=${field} value=${parameters[field.name]}
        onChange=${(value) => change(field.name, value)} />`)}
      ${(takesEffort || parameters.reasoning_effort) && html`<label class="field"><span>Reasoning effort</span>
        <select value=${parameters.reasoning_effort ?? ""} data-testid="reasoning_effort"
          onChange=${(event) => change("reasoning_effort", event.target.value)}>
          <option value="">default</option>
          ${EFFORTS.map((effort) => html`<option key=${effort} value=${effort}>${effort}</option>`)}
        </select>
      </label>`}
    </div>
    <${TextField} ...${text} name="stop" label="Stop texts, one a line" rows="2" />
    <${TextField} ...${text} name="schema" label="JSON schema of the answer" rows="4" isCode
      placeholder='{"type": "object", "properties": {"city": {"type": "string"}}}' />
    <${TextField} ...${text} name="tools" label="Tools (JSON)" rows="4" isCode
      placeholder='[{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]' />
    <p class="hint">Empty fields leave the choice to the server and are not sent. New conversations begin with these
      settings, without system prompt, JSON schema and preset.</p>
  </aside>`;
}

function NumberField({ field, value, onChange }) {
  const { name, label, hint } = field;
  const [typed, setTyped] = useState(shownValue(value));
  const isTyped = numberValue(field, typed) === (value ?? null);
  const text = isTyped ? typed : shownValue(value); // "0." stays while it is typed
  const error = errorOf(name, value);
  return html`<label class="field"><span>${label}</span>
    <input type="text" inputmode="decimal" value=${text} placeholder="default" title=${hint} data-testid=${name}
      autocomplete="off" aria-invalid=${error !== ""} aria-describedby="${name}-error"
      onInput=${(event) => {
        setTyped(event.target.value);
        onChange(numberValue(field, event.target.value));
      }} />
    <span id="${name}-error" class="field-error" role="status">${error}</span>
  </label>`;
}

function TextField({ parameters, change, name, label, rows, isCode = false, placeholder = "" }) {
  const value = parameters[name];
  const error = errorOf(name, value);
  return html`<label class="field"><span>${label}</span>
    <textarea class=${isCode ? "mono" : ""} rows=${rows} value=${value ?? ""} spellcheck=${!isCode}
      aria-invalid=${error !== ""} aria-describedby="${name}-error" data-testid="${name}-text"
      placeholder=${placeholder}
      onInput=${(event) => change(name, event.target.value)}></textarea>
    <span id="${name}-error" class="field-error" role="status">${error}</span>
  </label>`;
}
