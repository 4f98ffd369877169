// Keys of text fields.
const COMPOSING = 229; // the code of a key that an input method takes; Safari sends it after the composition has ended

/** Return whether a key event sends the text: Enter without Shift, which is not part of a composition. */
export function isSubmit({ key, shiftKey, isComposing, keyCode }) {
  return key === "Enter" && !shiftKey && !isComposing && keyCode !== COMPOSING;
}
