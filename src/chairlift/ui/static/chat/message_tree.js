// The messages of a conversation as a tree: an edited message and an answer that was generated again are versions
// beside the earlier ones. `nodes` has all messages, each behind its parent; `parent` is the id of the message before
// it, null for a first one. A path is what is shown: one message behind the other.

/** Return stored messages as nodes. Where a message names no earlier one as its parent, that is the one before it. */
export function treeOf(stored) {
  const known = new Set();
  let previous = null;
  return stored.map((message) => {
    const isRoot = message.parent === null;
    const parent = isRoot || known.has(message.parent) ? message.parent : previous;
    known.add(message.id);
    previous = message.id;
    return message.parent === parent ? message : { ...message, parent };
  });
}

/** Return the messages from a first one to the one with the id `leaf`; null: none, an unknown id: to the last one. */
export function pathTo(nodes, leaf) {
  if (leaf === null) return [];
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const path = [];
  let node = byId.get(leaf) ?? nodes.at(-1);
  while (node) {
    path.push(node);
    node = byId.get(node.parent);
  }
  return path.reverse();
}

/** Return the id of the newest message behind the one with this id; that id itself where nothing is behind it. */
export function newestLeaf(nodes, id) {
  const newest = new Map();
  for (const node of nodes) newest.set(node.parent, node.id);
  let leaf = id;
  while (newest.has(leaf)) leaf = newest.get(leaf);
  return leaf;
}

/** Return {position, count, previous, next} by id, for each message that has several versions; ids or null. */
export function versionsOf(nodes) {
  const groups = new Map();
  for (const { id, parent } of nodes) {
    if (groups.has(parent)) groups.get(parent).push(id);
    else groups.set(parent, [id]);
  }
  const versions = new Map();
  for (const ids of groups.values()) {
    if (ids.length < 2) continue;
    ids.forEach((id, index) => versions.set(id, {
      position: index + 1, count: ids.length, previous: ids[index - 1] ?? null, next: ids[index + 1] ?? null,
    }));
  }
  return versions;
}

/** Return the nodes without an answer that brought nothing, unless messages are behind it. */
export function withoutEmpty(nodes, answer) {
  const { id, content, reasoning, toolCalls } = answer;
  const isEmpty = !content && !reasoning && !toolCalls?.length;
  return isEmpty && !nodes.some(({ parent }) => parent === id) ? nodes.filter((node) => node.id !== id) : nodes;
}

/** Show a path of a conversation: its `nodes`, `leaf` and `messages` belong together. */
export function showPath(conversation, nodes, leaf) {
  const messages = pathTo(nodes, leaf);
  Object.assign(conversation, { nodes, messages, leaf: messages.at(-1)?.id ?? null });
}

/** Put messages behind the shown message with the id `parent` (null: at the beginning), and show them. */
export function append(conversation, parent, added) {
  let before = parent;
  const nodes = [...conversation.nodes];
  for (const message of added) {
    nodes.push({ ...message, parent: before });
    before = message.id;
  }
  showPath(conversation, nodes, before);
}

/** Replace a message of the shown path by another state of it. */
export function replaceMessage(conversation, message) {
  const replaced = (list) => {
    const index = list.findLastIndex(({ id }) => id === message.id);
    return index < 0 ? list : list.with(index, message);
  };
  conversation.nodes = replaced(conversation.nodes);
  conversation.messages = replaced(conversation.messages);
}

/** Return a message as it is after the page was loaded again: no answer is being generated any more. */
export function withoutRun(message) {
  const { isRunning, isInOtherTab, ...kept } = message;
  return isRunning || isInOtherTab ? { ...kept, isRunning: false, isStopped: true } : message;
}

/** Return a message as another tab has it, in which its answer is being generated. */
export function inOtherTab(message) {
  return message.isRunning ? { ...message, isRunning: false, isInOtherTab: true } : message;
}
