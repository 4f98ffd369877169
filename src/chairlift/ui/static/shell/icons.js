// Icons: paths of 24 by 24 units, drawn with the color of the text around them.
import { html } from "../lib/html.js";

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  retry: "M20 11a8 8 0 1 0-2.3 6.2M20 5v6h-6",
  edit: "M4 20h4L19 9l-4-4L4 16v4M13.5 6.5l4 4",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  settings: "M4 8h8M18 8h2M4 16h2M12 16h8M15 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5M9 13.5a2.5 2.5 0 1 0 0 5 " +
    "2.5 2.5 0 0 0 0-5",
  down: "M12 5v14M6 13l6 6 6-6",
  chevron: "M9 6l6 6-6 6",
  attach: "M20 11.5l-8 8a5 5 0 0 1-7-7l8.5-8.5a3.4 3.4 0 0 1 4.8 4.8L10 17a1.7 1.7 0 0 1-2.4-2.4l7-7",
  file: "M6 3h8l5 5v13H6zM14 3v5h5",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 3v1M12 20v1M3 12h1M20 12h1M5.6 5.6l.8.8M17.6 17.6l.8.8M5.6 18.4l.8-.8" +
    "M17.6 6.4l.8-.8",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  tool: "M14.5 6.5a4 4 0 0 0-5.2 5.2L4 17l3 3 5.3-5.3a4 4 0 0 0 5.2-5.2L15 12l-3-3 2.5-2.5",
  previous: "M15 6l-6 6 6 6",
  next: "M9 6l6 6-6 6",
  continue: "M8 5.5l10 6.5-10 6.5z",
  export: "M12 4v11M7.5 10.5L12 15l4.5-4.5M5 19h14",
  import: "M12 15V4M7.5 8.5L12 4l4.5 4.5M5 19h14",
  key: "M15 4a5 5 0 1 0-4.6 7L9 12.5V15H6.5v2.5H4V20h3l5.4-5.4M15.5 8.5h.01",
};

/** An icon; it is hidden from screen readers, so its button needs a label. */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d=${PATHS[name]} />
  </svg>`;
}

/** A button that shows an icon; `label` is read by screen readers and shown as a hint. */
export function IconButton({ icon, label, class: name = "", ...others }) {
  return html`<button type="button" class="icon-button ${name}" aria-label=${label} title=${label} ...${others}>
    <${Icon} name=${icon} />
  </button>`;
}
