// Export and import: conversations of the browser to a file of this machine, and back.
import { newId } from "../lib/ids.js";
import { BadFile, fileText, fingerprintOf, readFile } from "./conversation_file.js";
import { markdownOf } from "./conversation_markdown.js";
import { treeOf } from "./message_tree.js";

const MAX_NAME_CHARS = 60;
const URL_LIFE_MS = 60_000; // a browser reads the address some time after the click

/** Save the open conversation as a file: "json" with all versions, "markdown" as it is shown. */
export function exportCurrent({ current }, kind) {
  const name = fileName(current.title || "conversation");
  if (kind === "markdown") saveFile(`${name}.md`, "text/markdown", markdownOf(current));
  else saveFile(`${name}.json`, "application/json", fileText([current], []));
}

/** Save all conversations and presets as a file. Returns a sentence about it. */
export async function exportAll(model) {
  let all;
  try {
    all = await withNodes(model, model.conversations);
  } catch {
    return "The kept conversations could not be read; nothing was exported.";
  }
  const presets = model.presets.list;
  if (!all.length && !presets.length) return "There is nothing to export yet.";
  const day = new Date().toISOString().slice(0, 10);
  saveFile(`chairlift-conversations-${day}.json`, "application/json", fileText(all, presets));
  return `${counted(all.length, "conversation")} and ${counted(presets.length, "preset")} were exported.`;
}

/**
 * Add the conversations and presets of a file that are not here yet. One with the id of another conversation gets an
 * id of its own, so nothing is overwritten. Returns {text, isError}: a sentence about what was done.
 */
export async function importFile(model, file) {
  let content;
  let known;
  try {
    content = await readFile(file);
    known = new Set((await withNodes(model, model.conversations)).map(({ nodes }) => fingerprintOf(nodes)));
  } catch (error) {
    const message = error instanceof BadFile ? error.message : "The kept conversations could not be read.";
    return { text: `Nothing was imported. ${message}`, isError: true };
  }
  const outcome = await addConversations(model, content.conversations, known);
  const presets = outcome.error ? { count: 0, error: "" } : model.presets.add(content.presets);
  const { count, equal } = outcome;
  const texts = [
    `${counted(count, "conversation")} and ${counted(presets.count, "preset")} were imported.`,
    equal ? `${counted(equal, "conversation")} of the file ${equal === 1 ? "is" : "are"} here already.` : "",
    outcome.error, presets.error,
  ];
  return { text: texts.filter(Boolean).join(" "), isError: Boolean(outcome.error || presets.error) };
}

async function addConversations(model, conversations, known) {
  const outcome = { equal: 0, error: "" };
  const ids = new Set(model.conversations.map(({ id }) => id));
  const kept = [];
  for (const { nodes, ...meta } of conversations) {
    const fingerprint = fingerprintOf(nodes);
    if (known.has(fingerprint)) {
      outcome.equal += 1;
      continue;
    }
    const added = { ...meta, id: ids.has(meta.id) ? newId() : meta.id, revision: newId() };
    try {
      if ((await model.store.save(added, nodes, null)) !== "kept") throw new Error("another tab has this id");
    } catch (error) {
      const isFull = error?.name === "QuotaExceededError";
      outcome.error = isFull ? "The browser's storage is full: the rest was not imported. Delete conversations first."
        : "The browser could not keep the rest.";
      break;
    }
    known.add(fingerprint);
    ids.add(added.id);
    kept.push(added);
  }
  model.adopt(kept);
  return { ...outcome, count: kept.length };
}

/** Return conversations as the list has them with their nodes; those that are not kept yet as they are now. */
async function withNodes(model, conversations) {
  const stored = await model.store.messagesOf(conversations.map(({ id }) => id));
  return conversations.map((each, index) => model.held(each.id) ?? { ...each, nodes: treeOf(stored[index]) });
}

function saveFile(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), URL_LIFE_MS);
}

/** Return a title as the name of a file, without what file systems refuse. */
function fileName(title) {
  const name = title.replace(/[^\p{L}\p{N}._ -]+/gu, " ").trim().replace(/\s+/g, "-").replace(/^\.+/, "");
  return name.slice(0, MAX_NAME_CHARS) || "conversation";
}

function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
