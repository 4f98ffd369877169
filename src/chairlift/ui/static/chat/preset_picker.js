// PresetPicker: the preset of a conversation, and the buttons that keep, rename and delete presets.
import { html, useChanges, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { newId } from "../lib/ids.js";
import { isSame, MAX_NAME_CHARS, presetParameters } from "./presets.js";

/** `onChange(parameters)` gets the settings of the conversation with those of the chosen preset. */
export function PresetPicker({ presets, parameters, onChange }) {
  useChanges(presets);
  const [named, setNamed] = useState(null); // {id, name} while a name is asked for; id null for a new preset
  const [isDeleting, setIsDeleting] = useState(false);
  const [error, setError] = useState("");
  const chosen = presets.find(parameters.preset);
  const isChanged = chosen !== undefined && !isSame(chosen, parameters);
  const select = useRef();
  const isAsking = named !== null || (isDeleting && chosen !== undefined);
  useLayoutEffect(() => {
    if (!isAsking) return undefined;
    return () => document.activeElement === document.body && select.current?.focus(); // what had the focus is gone
  }, [isAsking]);
  const choose = (id) => {
    setError("");
    setIsDeleting(false);
    const preset = presets.find(id);
    onChange(preset ? { system: "", ...preset.parameters, preset: id } : { ...parameters, preset: null });
  };
  const keep = (name) => {
    const { id } = named;
    const kept = { id: id ?? newId(), name, parameters: presets.find(id)?.parameters ?? parameters };
    const wrong = presets.keep(kept);
    setError(wrong);
    if (wrong) return;
    setNamed(null);
    if (!id || !chosen) onChange({ ...parameters, preset: kept.id }); // a new one, or another tab deleted it
  };
  const remove = () => {
    setError(presets.remove(chosen.id));
    setIsDeleting(false);
    onChange({ ...parameters, preset: null });
  };
  return html`<div class="presets" role="group" aria-label="Preset" data-testid="presets">
    <label class="field"><span>Preset</span>
      <select ref=${select} value=${chosen?.id ?? ""} data-testid="preset"
        onChange=${(event) => choose(event.target.value)}>
        <option value="">None</option>
        ${presets.list.map(({ id, name }) => html`<option key=${id} value=${id}>
          ${name}${id === chosen?.id && isChanged ? " (changed here)" : ""}</option>`)}
      </select>
    </label>
    ${named && html`<${NameForm} name=${named.name} error=${error} onKeep=${keep}
      onCancel=${() => { setNamed(null); setError(""); }} />`}
    ${isDeleting && chosen && html`<${DeleteQuestion} name=${chosen.name} onDelete=${remove}
      onCancel=${() => setIsDeleting(false)} />`}
    ${!isAsking && html`<div class="preset-buttons">
      <button type="button" class="button" onClick=${() => setNamed({ id: null, name: "" })}>Save as preset</button>
      ${isChanged && html`<button type="button" class="button"
        onClick=${() => setError(presets.keep({ ...chosen, parameters: presetParameters(parameters) }))}>
        Update preset</button>`}
      ${chosen && html`<button type="button" class="button" onClick=${() => setNamed(chosen)}>Rename</button>
        <button type="button" class="button" onClick=${() => setIsDeleting(true)}>Delete</button>`}
    </div>`}
    ${!named && error && html`<p class="field-error" role="alert">${error}</p>`}
  </div>`;
}

function NameForm({ name, error, onKeep, onCancel }) {
  const field = useRef();
  useLayoutEffect(() => {
    field.current.focus(); // Firefox gives the focus to no field for `select` alone
    field.current.select();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    onKeep(field.current.value);
  };
  return html`<form class="preset-name" onSubmit=${submit}>
    <label class="field"><span>Name of the preset</span>
      <input ref=${field} defaultValue=${name} maxlength=${MAX_NAME_CHARS} aria-invalid=${error !== ""}
        aria-describedby="preset-error" data-testid="preset-name"
        onKeyDown=${(event) => cancelOnEscape(event, onCancel)} />
      <span id="preset-error" class="field-error" role="status">${error}</span>
    </label>
    <div class="preset-buttons">
      <button type="submit" class="button primary">Save</button>
      <button type="button" class="button" onClick=${onCancel}>Cancel</button>
    </div>
  </form>`;
}

function DeleteQuestion({ name, onDelete, onCancel }) {
  const button = useRef();
  useLayoutEffect(() => button.current.focus(), []);
  return html`<div class="preset-delete" role="alert" onKeyDown=${(event) => cancelOnEscape(event, onCancel)}>
    <p>Delete “${name}”? This conversation keeps its settings.</p>
    <div class="preset-buttons">
      <button ref=${button} type="button" class="button" onClick=${onCancel}>Keep</button>
      <button type="button" class="button danger" onClick=${onDelete}>Delete preset</button>
    </div></div>`;
}

function cancelOnEscape(event, onCancel) {
  if (event.key !== "Escape") return;
  event.preventDefault();
  event.stopPropagation(); // it would close the settings
  onCancel();
}
