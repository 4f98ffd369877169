// RowDot: the color that a request has in the batch's drawings.
import { html, useLayoutEffect, useRef } from "../lib/html.js";
import { palette } from "./canvas.js";

export function RowDot({ value }) {
  const dot = useRef();
  useLayoutEffect(() => {
    dot.current.setAttribute("fill", value < 0 ? palette().border : palette().row(value));
  });
  return html`<svg class="row-dot" viewBox="0 0 8 8" aria-hidden="true">
    <rect ref=${dot} width="8" height="8" rx="2" /></svg>`;
}
