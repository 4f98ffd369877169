// Presets: named system prompts with settings, kept in the browser and shared by its tabs.
import { Changes } from "../lib/changes.js";
import { newId } from "../lib/ids.js";
import { keepText, keptText } from "../lib/kept.js";
import { rightParameters } from "./parameter_fields.js";

const PRESETS = "chairlift.presets";
export const MAX_PRESETS = 200;
export const MAX_NAME_CHARS = 60;

export class Presets {
  constructor() {
    this.list = readList(); // {id, name, parameters}, by name
    this.changes = new Changes();
    window.addEventListener("storage", ({ key }) => {
      if (key !== PRESETS && key !== null) return;
      this.list = readList();
      this.changes.notify();
    });
  }

  find(id) {
    return this.list.find((preset) => preset.id === id);
  }

  /** Return what is wrong with a name for the preset with this id, null for a new one; "" where nothing is. */
  nameError(name, id = null) {
    const trimmed = name.trim();
    if (!trimmed) return "A preset needs a name.";
    if (trimmed.length > MAX_NAME_CHARS) return `A name has at most ${MAX_NAME_CHARS} characters.`;
    const isTaken = this.list.some((preset) => preset.id !== id && preset.name === trimmed);
    return isTaken ? `There is a preset “${trimmed}” already; choose another name.` : "";
  }

  /** Keep a preset, a new one or in place of the one with its id. Returns what was wrong, "" where it is kept. */
  keep({ id, name, parameters }) {
    const error = this.nameError(name, id);
    if (error) return error;
    const others = this.list.filter((preset) => preset.id !== id);
    if (others.length >= MAX_PRESETS) return `There are ${MAX_PRESETS} presets, which is the limit; delete others.`;
    return this.write([...others, { id, name: name.trim(), parameters: presetParameters(parameters) }]);
  }

  /** Delete a preset. Returns what was wrong. */
  remove(id) {
    return this.write(this.list.filter((preset) => preset.id !== id));
  }

  /** Add presets of a file. Returns how many are new; one that is here with the same content is not added again. */
  add(presets) {
    const added = [];
    for (const preset of presets) {
      const content = contentOf(preset);
      if ([...this.list, ...added].some((each) => contentOf(each) === content)) continue;
      const isTaken = [...this.list, ...added].some(({ id }) => id === preset.id);
      const names = [...this.list, ...added].map(({ name }) => name);
      added.push({ ...preset, id: isTaken ? newId() : preset.id, name: freeName(preset.name, names) });
    }
    const room = MAX_PRESETS - this.list.length;
    if (added.length > room) return { count: 0, error: `The presets were not added: the limit is ${MAX_PRESETS}.` };
    const error = added.length ? this.write([...this.list, ...added]) : "";
    return { count: error ? 0 : added.length, error };
  }

  write(list) {
    const sorted = list.toSorted((one, other) => one.name.localeCompare(other.name));
    const text = JSON.stringify(sorted);
    const before = keptText(PRESETS);
    keepText(PRESETS, text);
    if (keptText(PRESETS) !== text) {
      keepText(PRESETS, before);
      return "The browser's storage is full or forbidden: the presets stay as they were.";
    }
    this.list = sorted;
    this.changes.notify();
    return "";
  }
}

/** Return whether a conversation's settings are those of the preset. */
export function isSame(preset, parameters) {
  return canonical(preset.parameters) === canonical(presetParameters(parameters));
}

/** Return the settings that a preset keeps. */
export function presetParameters(parameters) {
  const { preset: _, ...kept } = rightParameters(parameters);
  return Object.fromEntries(Object.entries(kept).filter(([, value]) => value !== null && value !== ""));
}

/** Return what makes presets equal; a number that an import has put behind the name is no difference. */
function contentOf({ name, parameters }) {
  return `${name.replace(/ \(\d+\)$/, "")}\n${canonical(parameters)}`;
}

function canonical(parameters) {
  return JSON.stringify(Object.entries(parameters).toSorted(([one], [other]) => (one < other ? -1 : 1)));
}

function freeName(name, names) {
  let free = name;
  for (let number = 2; names.includes(free); number += 1) {
    const ending = ` (${number})`;
    free = `${name.slice(0, MAX_NAME_CHARS - ending.length)}${ending}`;
  }
  return free;
}

function readList() {
  try {
    const list = JSON.parse(keptText(PRESETS) ?? "[]");
    return list.filter(({ id, name, parameters }) => typeof id === "string" && typeof name === "string" && parameters);
  } catch {
    return [];
  }
}
