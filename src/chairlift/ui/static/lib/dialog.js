// A modal dialog that gives the focus back when it goes.
import { useLayoutEffect } from "./html.js";

/** Show the dialog of `ref`; the element that had the focus gets it back, or the main part where it is gone. */
export function useModal(ref) {
  useLayoutEffect(() => {
    const before = document.activeElement;
    ref.current.showModal();
    return () => requestAnimationFrame(() => {
      if (document.activeElement && document.activeElement !== document.body) return;
      (before?.isConnected && before !== document.body ? before : document.getElementById("main"))?.focus();
    });
  }, []);
}
