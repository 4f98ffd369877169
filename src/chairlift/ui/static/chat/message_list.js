// MessageList: renders only the messages near the visible part, so that 10,000 of them stay responsive.
//
// Heights of messages that were never visible are estimated; a measured height above the visible part moves the
// scroll position by the difference, so that the text that is being read stays where it is.
import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { IconButton } from "../shell/icons.js";

const ESTIMATED_PX = 140;
const MARGIN_PX = 800; // rendered above and below the visible part
const BOTTOM_PX = 48; // this near to the end counts as at the end

/** Return the index of the last offset that is at most `position`. */
function indexAt(offsets, position) {
  let low = 0;
  let high = offsets.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= position) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Return where each message begins, and where the last one ends. */
function offsetsOf(messages, heights) {
  const offsets = new Float64Array(messages.length + 1);
  messages.forEach(({ id }, index) => {
    offsets[index + 1] = offsets[index] + (heights.get(id) ?? ESTIMATED_PX);
  });
  return offsets;
}

const TARGET_FRAMES = 12; // a message that is shown is measured, and so are its neighbours, within some frames

/**
 * `target` is {id, button}: the message to scroll to, which gets the focus, unless the user moves the focus meanwhile.
 * With `button`, a label, it stays where it is and that button gets the focus at once. Another object does it again.
 */
export function MessageList({ messages, conversationId, renderMessage, target }) {
  const frame = useRef();
  const heights = useRef(new Map());
  const state = useRef({ isAtEnd: true, top: 0, height: 800, total: 0 });
  const [, setTick] = useState(0);
  const renderAgain = useCallback(() => setTick((tick) => tick + 1), []);
  const [isAtEnd, setIsAtEnd] = useState(true);
  const offsets = offsetsOf(messages, heights.current);
  const total = offsets[messages.length];
  const { top, height } = state.current;
  const shownTop = state.current.isAtEnd ? Math.max(0, total - height) : top;
  const first = indexAt(offsets, Math.max(0, shownTop - MARGIN_PX));
  const last = Math.min(messages.length - 1, indexAt(offsets, shownTop + height + MARGIN_PX));
  const latest = useRef();
  latest.current = { messages, offsets };

  const toEnd = useCallback(() => {
    state.current.isAtEnd = true;
    setIsAtEnd(true);
    frame.current.scrollTop = frame.current.scrollHeight;
    renderAgain();
  }, []);
  const onScroll = () => {
    const { scrollTop, clientHeight, scrollHeight } = frame.current;
    const moved = Math.abs(scrollTop - state.current.top);
    const distance = scrollHeight - scrollTop - clientHeight;
    // Any scrolling upwards leaves the end, also in small steps while an answer grows.
    const isUpwards = scrollTop < state.current.top - 1 && scrollHeight >= state.current.total;
    state.current.isAtEnd = distance < (isUpwards ? 1 : BOTTOM_PX);
    Object.assign(state.current, { top: scrollTop, height: clientHeight, total: scrollHeight });
    setIsAtEnd(state.current.isAtEnd);
    if (moved > 0) renderAgain();
  };
  useEffect(() => {
    const element = frame.current;
    const observer = new ResizeObserver(() => {
      state.current.height = element.clientHeight;
      if (state.current.isAtEnd) element.scrollTop = element.scrollHeight;
      renderAgain();
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const measure = useCallback((id, measured) => {
    const known = heights.current.get(id) ?? ESTIMATED_PX;
    if (Math.abs(known - measured) < 0.5 && heights.current.has(id)) return;
    const { messages: shown, offsets: before } = latest.current;
    heights.current.set(id, measured);
    const index = shown.findIndex((message) => message.id === id);
    const element = frame.current;
    if (!state.current.isAtEnd && index >= 0 && before[index] + known <= element.scrollTop) {
      element.scrollTop += measured - known;
      state.current.top = element.scrollTop;
    }
    renderAgain();
  }, []);
  useLayoutEffect(() => {
    heights.current.clear();
    toEnd();
  }, [conversationId]);
  useLayoutEffect(() => {
    if (!target || !messages.some(({ id }) => id === target.id)) return undefined;
    let frames = TARGET_FRAMES;
    let request = 0;
    const before = document.activeElement;
    let hasFocus = false;
    const focus = () => { // in the first frame that has the message, unless the focus has moved
      if (!hasFocus && [before, document.body].includes(document.activeElement)) {
        hasFocus = focusTarget(frame.current, target);
      }
    };
    const scroll = () => {
      const element = frame.current;
      const index = latest.current.messages.findIndex(({ id }) => id === target.id);
      if (!target.button) element.scrollTop = latest.current.offsets[index] ?? 0;
      state.current.top = element.scrollTop;
      state.current.isAtEnd = false;
      frames -= 1;
      if (frames > 0) request = requestAnimationFrame(scroll);
      else setIsAtEnd(element.scrollHeight - element.scrollTop - element.clientHeight < BOTTOM_PX);
      focus();
      renderAgain();
    };
    scroll();
    return () => cancelAnimationFrame(request);
  }, [target, conversationId]);
  useLayoutEffect(() => {
    if (state.current.isAtEnd) frame.current.scrollTop = frame.current.scrollHeight;
  });
  return html`<div class="messages-frame">
  <div class="messages" ref=${frame} onScroll=${onScroll} tabindex="0" role="feed"
      aria-label="Conversation" data-testid="messages">
    <div class="messages-space" style=${{ height: `${offsets[first]}px` }}></div>
    ${messages.slice(first, last + 1).map((message, index) => html`<${Measured} key=${message.id} id=${message.id}
      measure=${measure} position=${first + index + 1} count=${messages.length} role=${message.role}>
      ${renderMessage(message, first + index)}
    <//>`)}
    <div class="messages-space" style=${{ height: `${total - offsets[last + 1]}px` }}></div>
  </div>
  ${!isAtEnd && html`<${IconButton} class="to-end" icon="down" label="Go to the end" onClick=${toEnd} />`}
  </div>`;
}

/** Give the focus to the message, or to its button with that label; to one beside it where that is disabled. */
function focusTarget(frame, { id, button }) {
  const article = frame.querySelector(`[data-message="${CSS.escape(id)}"]`);
  const buttons = [...(article?.querySelectorAll(".version-switch button:not(:disabled)") ?? [])];
  const found = buttons.find((each) => each.ariaLabel === button) ?? buttons[0];
  const element = button ? found : article;
  element?.focus({ preventScroll: true });
  return Boolean(element);
}

export const NAMES = { user: "You", assistant: "Answer", tool: "Tool result" };

function Measured({ id, measure, position, count, role, children }) {
  const element = useRef();
  useLayoutEffect(() => {
    const target = element.current;
    const report = () => measure(id, target.getBoundingClientRect().height);
    report();
    const observer = new ResizeObserver(report);
    observer.observe(target);
    return () => observer.disconnect();
  }, [id]);
  return html`<article ref=${element} class="message-frame" tabindex="-1" data-message=${id}
    aria-posinset=${position} aria-setsize=${count} data-role=${role}
    aria-label="${NAMES[role]}, message ${position} of ${count}">${children}</article>`;
}
