// The settings that a new conversation begins with: those of the last change, kept in the browser.
import { keepText, keptText } from "../lib/kept.js";
import { rightParameters } from "./parameter_fields.js";

const PARAMETERS = "chairlift.parameters";

/** Keep settings without an error for new conversations; system prompt, schema and preset stay where they are. */
export function keepParameters(parameters) {
  const { system, schema, preset, ...kept } = rightParameters(parameters);
  keepText(PARAMETERS, JSON.stringify(kept));
}

export function keptParameters() {
  try {
    return { system: "", ...rightParameters(JSON.parse(keptText(PARAMETERS) ?? "{}")) };
  } catch {
    return { system: "" };
  }
}
