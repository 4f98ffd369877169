// A modal dialog that gives the focus back when it goes, and the same for other parts that go.
import { useLayoutEffect } from "./html.js";

/** Give the focus to the element that `find` returns, if the one that had it has gone with this rendering. */
export function focusIfLost(find) {
  queueMicrotask(() => { // a frame later, the keys of a fast user would be lost
    if (document.activeElement && document.activeElement !== document.body) return;
    find()?.focus({ preventScroll: true });
  });
}

/** Show the dialog of `ref`; the element that had the focus gets it back, or the main part where it is gone. */
export function useModal(ref) {
  useLayoutEffect(() => {
    const before = document.activeElement;
    ref.current.showModal();
    return () => focusIfLost(() => (
      before?.isConnected && before !== document.body ? before : document.getElementById("main")));
  }, []);
}
