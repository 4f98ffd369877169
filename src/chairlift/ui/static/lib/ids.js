// Ids of conversations, messages, files, presets and revisions.

/** Return a new id. A page that came over plain HTTP from another machine has no randomUUID. */
export function newId() {
  return crypto.randomUUID?.() ?? String(Math.random());
}
