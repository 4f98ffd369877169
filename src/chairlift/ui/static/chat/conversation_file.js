// The file of exported conversations and presets: what it has, and how a file is read that may be wrong.
//
// {format, version, exported, conversations: [{id, title, updated, leaf, parameters, messages}], presets}. A message
// has its id and that of its parent; all versions are there. Fields that are not known here are left out on import.
import { MAX_TITLE_CHARS } from "./conversation_title.js";
import { newestLeaf, withoutRun } from "./message_tree.js";
import { rightParameters } from "./parameter_fields.js";
import { MAX_PRESETS, presetParameters } from "./presets.js";

const FORMAT = "chairlift.conversations";
const VERSION = 1;
export const MAX_FILE_BYTES = 200_000_000;
const MAX_CONVERSATIONS = 20_000;
const MAX_ID_CHARS = 200;
const ROLES = ["user", "assistant", "tool"];
const MESSAGE_FIELDS = [
  "id", "parent", "role", "content", "files", "reasoning", "toolCalls", "toolCallId", "model", "finish", "isStopped",
  "isJson", "error", "usage", "stats",
];

/** A file that cannot be imported; the message says what is wrong. */
export class BadFile extends Error {}

/** Return the text of a file with conversations, each {id, title, updated, leaf, parameters, nodes}, and presets. */
export function fileText(conversations, presets) {
  const exported = new Date().toISOString();
  const entries = conversations.map(({ id, title, updated, leaf, parameters, nodes }) => ({
    id, title, updated, leaf: leaf ?? null, parameters: rightParameters(parameters ?? {}),
    messages: nodes.map((node) => known(withoutRun(node))),
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, exported, conversations: entries, presets }, null, 1);
}

/** Return {conversations, presets} of a file. Raises BadFile. */
export async function readFile(file) {
  if (file.size > MAX_FILE_BYTES) {
    const size = Math.ceil(file.size / 1e6);
    throw new BadFile(`The file has ${size} MB; the limit is ${MAX_FILE_BYTES / 1e6} MB.`);
  }
  let text;
  try {
    text = await file.text();
  } catch {
    throw new BadFile("The file could not be read.");
  }
  return parseFile(text);
}

/** Return {conversations, presets} of the text of a file; conversations as fileText takes them. Raises BadFile. */
export function parseFile(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new BadFile(`The file is not valid JSON: ${error.message}`);
  }
  if (!isObject(value) || value.format !== FORMAT) {
    throw new BadFile(`The file is no export of this page: its format is not “${FORMAT}”.`);
  }
  if (!Number.isInteger(value.version) || value.version < 1) {
    throw new BadFile("The file's version is no whole number of at least 1.");
  }
  if (value.version > VERSION) {
    throw new BadFile(`The file has version ${value.version} of the format; this page reads up to version ${VERSION}.`);
  }
  const { conversations = [], presets = [] } = value;
  if (!Array.isArray(conversations)) throw new BadFile("The file's conversations are no list.");
  if (!Array.isArray(presets)) throw new BadFile("The file's presets are no list.");
  for (const [count, noun, limit] of [
    [conversations.length, "conversations", MAX_CONVERSATIONS], [presets.length, "presets", MAX_PRESETS],
  ]) {
    if (count > limit) throw new BadFile(`The file has ${count} ${noun}; the limit is ${limit}.`);
  }
  return {
    conversations: conversations.map((each, index) => conversationOf(each, `Conversation ${index + 1}`)),
    presets: presets.map((each, index) => presetOf(each, `Preset ${index + 1}`)),
  };
}

function conversationOf(value, place) {
  if (!isObject(value)) throw new BadFile(`${place} of the file is no object.`);
  const { id, title = "", updated = Date.now(), leaf = null, parameters = {}, messages } = value;
  checkId(id, place);
  if (typeof title !== "string") throw new BadFile(`${place}: the title must be a text.`);
  if (!Number.isFinite(updated)) throw new BadFile(`${place}: “updated” must be a number of milliseconds.`);
  if (!isObject(parameters)) throw new BadFile(`${place}: the parameters must be an object.`);
  if (!Array.isArray(messages) || !messages.length) throw new BadFile(`${place} has no list of messages.`);
  const ids = new Set();
  const nodes = messages.map((message, index) => {
    const node = messageOf(message, `${place}, message ${index + 1}`, ids, messages[index - 1]?.id ?? null);
    ids.add(node.id);
    return node;
  });
  if (leaf !== null && !ids.has(leaf)) throw new BadFile(`${place}: no message has the id of its leaf.`);
  return {
    id, title: title.slice(0, MAX_TITLE_CHARS), updated, leaf: newestLeaf(nodes, leaf ?? nodes.at(-1).id),
    parameters: rightParameters(parameters), nodes,
  };
}

function messageOf(value, place, ids, previous) {
  if (!isObject(value)) throw new BadFile(`${place} is no object.`);
  const { id, role, content, parent = previous } = value;
  checkId(id, place);
  if (ids.has(id)) throw new BadFile(`${place}: an earlier message has the same id.`);
  if (!ROLES.includes(role)) throw new BadFile(`${place}: the role must be one of ${ROLES.join(", ")}.`);
  if (typeof content !== "string") throw new BadFile(`${place}: the content must be a text.`);
  if (parent !== null && !ids.has(parent)) throw new BadFile(`${place}: its parent is no earlier message.`);
  const isText = (name) => typeof (value[name] ?? "") === "string";
  const wrong = ["reasoning", "model", "finish", "toolCallId"].find((name) => !isText(name));
  if (wrong) throw new BadFile(`${place}: “${wrong}” must be a text.`);
  const { toolCalls = [] } = value;
  if (!Array.isArray(toolCalls) || !toolCalls.every(isCall)) {
    throw new BadFile(`${place}: “toolCalls” must be a list of objects with the texts id, name and text.`);
  }
  if (value.files !== undefined && !(Array.isArray(value.files) && value.files.every(isFile))) {
    throw new BadFile(`${place}: “files” must be a list of objects with id, name, size and text.`);
  }
  const node = known({ ...value, parent });
  if (!isUsage(node.usage)) delete node.usage;
  if (!isStats(node.stats)) delete node.stats;
  if (!isObject(node.error) || typeof node.error.message !== "string") delete node.error;
  return role === "assistant" ? { reasoning: "", ...node, toolCalls } : node;
}

function presetOf(value, place) {
  if (!isObject(value)) throw new BadFile(`${place} of the file is no object.`);
  const { id, name, parameters } = value;
  checkId(id, place);
  if (typeof name !== "string" || !name.trim()) throw new BadFile(`${place}: the name must be a text.`);
  if (!isObject(parameters)) throw new BadFile(`${place}: the parameters must be an object.`);
  return { id, name: name.trim().slice(0, MAX_TITLE_CHARS), parameters: presetParameters(parameters) };
}

function checkId(id, place) {
  if (typeof id !== "string" || !id || id.length > MAX_ID_CHARS) {
    throw new BadFile(`${place}: the id must be a text of at most ${MAX_ID_CHARS} characters.`);
  }
}

/** Return what two conversations have in common where nothing but ids, titles, settings and times differ. */
export function fingerprintOf(nodes) {
  const places = new Map(nodes.map(({ id }, index) => [id, index]));
  return JSON.stringify(nodes.map(({ parent, role, content, files, reasoning, toolCalls, toolCallId }) => [
    places.get(parent) ?? -1, role, content, reasoning ?? "", toolCallId ?? "",
    (toolCalls ?? []).map(({ id, name, text }) => [id, name, text]),
    (files ?? []).map(({ name, text }) => [name, text]),
  ]));
}

function known(message) {
  return Object.fromEntries(MESSAGE_FIELDS.filter((name) => message[name] !== undefined)
    .map((name) => [name, message[name]]));
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isCall(call) {
  return isObject(call) && ["id", "name", "text"].every((name) => typeof call[name] === "string");
}

function isFile(file) {
  return isCall(file) && Number.isFinite(file.size); // both have a name and a text
}

function isUsage(usage) {
  return isObject(usage) && ["prompt_tokens", "completion_tokens"].every((name) => Number.isFinite(usage[name]));
}

function isStats(stats) {
  const isNumberOrNull = (name) => stats[name] === null || Number.isFinite(stats[name]);
  return isObject(stats) && Number.isFinite(stats.tokens) && Number.isFinite(stats.ttft) &&
    Number.isFinite(stats.seconds ?? 0) && ["prompt", "cached", "rate"].every(isNumberOrNull);
}
