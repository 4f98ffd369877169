// Drawers of the chat view: the list of conversations, which slides over the chat on a phone, and the settings.
import { useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";

const NARROW = "(max-width: 45rem)"; // as styles.css has it: below it the list is a drawer
const TOUCH = "(pointer: coarse)";
const OVERLAY = "(max-width: 62rem)"; // below it the settings lie over the chat

/** Return {list, panel}, each {isOpen, toggle, close}. Escape closes a drawer, and its button gets the focus back. */
export function useDrawers() {
  const list = useDrawer(".sidebar", NARROW, "button");
  const panel = useDrawer(".panel", OVERLAY, "textarea");
  useEffect(() => {
    const narrow = matchMedia(NARROW);
    const onChange = () => narrow.matches || list.close(); // a wide window always shows the list
    narrow.addEventListener("change", onChange);
    return () => narrow.removeEventListener("change", onChange);
  }, []);
  return { list, panel };
}

/**
 * `selector` is the drawer's, `first` that of the element in it that gets the focus when it opens, a button on a touch
 * screen; a drawer that stays open beside another conversation takes no focus. Escape closes it from everywhere while
 * `query` holds.
 */
function useDrawer(selector, query, first) {
  const [isOpen, setIsOpen] = useState(false);
  const opener = useRef(null);
  const close = () => setIsOpen(false);
  const toggle = ({ currentTarget }) => {
    opener.current = currentTarget;
    setIsOpen(!isOpen);
  };
  useLayoutEffect(() => {
    if (!isOpen) return undefined;
    const drawer = document.querySelector(selector);
    const target = matchMedia(TOUCH).matches ? "button" : first; // a text field would open the keyboard over the drawer
    drawer?.querySelector(target)?.focus({ preventScroll: true }); // it may still slide in
    const onKeyDown = (event) => {
      const isTaken = event.defaultPrevented || event.target.closest("dialog, .rename, .editor, .composer");
      if (event.key === "Escape" && !isTaken && matchMedia(query).matches) close();
    };
    window.addEventListener("keydown", onKeyDown);
    return () => {
      window.removeEventListener("keydown", onKeyDown);
      const { activeElement } = document;
      if (!activeElement || activeElement === document.body || drawer?.contains(activeElement)) opener.current?.focus();
    };
  }, [isOpen]);
  return { isOpen, toggle, close };
}
