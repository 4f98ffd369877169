// Parameter fields: the settings of a conversation, what is wrong with a value, and the fields of a request that they
// become. An empty value leaves the choice to the server and is not sent. New conversations begin with those that were
// changed last, which are kept in the browser.
import { keepText, keptText } from "../lib/kept.js";

const MAX_STOPS = 64;
const MAX_STOP_CHARS = 1024;
const MAX_SYSTEM_CHARS = 1_000_000;
const KEPT = "chairlift.parameters"; // name in the storage

/** Numbers: the least and the greatest value, whether it is whole, and whether the least itself is refused. */
export const NUMBERS = [
  { name: "temperature", label: "Temperature", least: 0, most: 2,
    hint: "0 always takes the likeliest token" },
  { name: "max_tokens", label: "Max tokens", least: 1, most: 2 ** 31 - 1, isWhole: true, hint: "longest answer" },
  { name: "top_p", label: "Top p", least: 0, most: 1, hint: "share of probability to sample from" },
  { name: "top_k", label: "Top k", least: 0, most: 2 ** 31 - 1, isWhole: true,
    hint: "sample from this many tokens; 0 is all" },
  { name: "min_p", label: "Min p", least: 0, most: 1,
    hint: "drop tokens below this share of the likeliest one's probability" },
  { name: "seed", label: "Seed", least: -Number.MAX_SAFE_INTEGER, most: Number.MAX_SAFE_INTEGER, isWhole: true,
    hint: "same seed, same answer" },
  { name: "presence_penalty", label: "Presence penalty", least: -2, most: 2,
    hint: "against tokens that the answer has" },
  { name: "frequency_penalty", label: "Frequency penalty", least: -2, most: 2,
    hint: "against tokens by how often the answer has them" },
  { name: "repetition_penalty", label: "Repetition penalty", least: 0, most: 10, isAboveLeast: true,
    hint: "against tokens that prompt or answer have; 1 changes nothing" },
];

export const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

const NAMES = [...NUMBERS.map(({ name }) => name), "system", "stop", "tools", "schema", "reasoning_effort", "preset"];

/** Return a setting as the field shows it. */
export function shownValue(value) {
  return value === null || value === undefined ? "" : String(value);
}

/** Return what is kept for the text of a number's field: the number, null for none, the text where it is wrong. */
export function numberValue(field, text) {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  const value = Number(trimmed.replace(",", "."));
  return numberError(field, value) ? text : value;
}

function numberError({ label, least, most, isWhole, isAboveLeast }, value) {
  const kind = isWhole ? "a whole number" : "a number";
  const range = isAboveLeast ? `above ${least} and at most ${most}` : rangeOf(least, most);
  const isNumber = typeof value === "number" && (isWhole ? Number.isSafeInteger(value) : Number.isFinite(value));
  const isInside = value <= most && (isAboveLeast ? value > least : value >= least);
  return isNumber && isInside ? "" : `${label} must be ${kind}${range && ` ${range}`}.`;
}

function rangeOf(least, most) {
  if (most < 2 ** 31 - 1) return `from ${least} to ${most}`;
  return least < 0 ? "" : `of at least ${least}`;
}

function systemError(value) {
  if (typeof value !== "string") return "The system prompt must be a text.";
  return value.length <= MAX_SYSTEM_CHARS ? ""
    : `The system prompt has ${value.length} characters; the limit is ${MAX_SYSTEM_CHARS}.`;
}

function stopError(value) {
  if (typeof value !== "string") return "The stop texts must be a text with one in each line.";
  const stops = stopsOf(value);
  if (stops.length > MAX_STOPS) return `There are ${stops.length} stop texts; the limit is ${MAX_STOPS}.`;
  const long = stops.find((stop) => stop.length > MAX_STOP_CHARS);
  return long ? `A stop text has ${long.length} characters; the limit is ${MAX_STOP_CHARS}.` : "";
}

function stopsOf(text) {
  return text.split("\n").filter((line) => line !== "");
}

function jsonError(text, isRight, form) {
  if (typeof text !== "string") return form;
  if (!text.trim()) return "";
  try {
    return isRight(JSON.parse(text)) ? "" : form;
  } catch (error) {
    return `This is not valid JSON: ${error.message}`;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const ERRORS = {
  system: systemError,
  stop: stopError,
  tools: (text) => jsonError(text, Array.isArray, "Tools are a JSON list, as in the OpenAI API."),
  schema: (text) => jsonError(text, isObject, "A JSON schema is a JSON object, such as {\"type\": \"object\"}."),
  reasoning_effort: (value) => (value === "" || EFFORTS.includes(value)
    ? "" : `The reasoning effort must be one of ${EFFORTS.join(", ")}.`),
  preset: (value) => (typeof value === "string" ? "" : "The preset must be named by its id."),
  ...Object.fromEntries(NUMBERS.map((field) => [field.name, (value) => numberError(field, value)])),
};
const TITLES = { tools: "Tools: ", schema: "JSON schema: " };

/** Return what is wrong with one setting, in a sentence; "" where nothing is. */
export function errorOf(name, value) {
  return value === null || value === undefined ? "" : ERRORS[name](value);
}

/** Return what is wrong with the first wrong setting, "" where nothing is. */
export function firstError(parameters) {
  for (const name of NAMES) {
    const error = errorOf(name, parameters[name]);
    if (error) return `${TITLES[name] ?? ""}${error}`;
  }
  return "";
}

/** Return the settings that are known and right. */
export function rightParameters(parameters) {
  const right = NAMES.filter((name) => parameters[name] !== undefined && errorOf(name, parameters[name]) === "");
  return Object.fromEntries(right.map((name) => [name, parameters[name]]));
}

/** Return the fields of a request for settings without an error; the system prompt is a message and none of them. */
export function bodyFields(parameters) {
  const fields = {};
  for (const { name } of NUMBERS) {
    if (Number.isFinite(parameters[name])) fields[name] = parameters[name];
  }
  const stop = stopsOf(parameters.stop ?? "");
  if (stop.length) fields.stop = stop;
  if (parameters.reasoning_effort) fields.reasoning_effort = parameters.reasoning_effort;
  if (parameters.tools?.trim()) fields.tools = JSON.parse(parameters.tools);
  if (parameters.schema?.trim()) {
    const schema = JSON.parse(parameters.schema);
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  return fields;
}

/** Keep settings without an error for new conversations; system prompt, schema and preset stay where they are. */
export function keepParameters(parameters) {
  const { system, schema, preset, ...kept } = rightParameters(parameters);
  keepText(KEPT, JSON.stringify(kept));
}

export function keptParameters() {
  try {
    return { system: "", ...rightParameters(JSON.parse(keptText(KEPT) ?? "{}")) };
  } catch {
    return { system: "" };
  }
}
