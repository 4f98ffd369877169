// Canvas: a canvas that is as sharp as the screen and is drawn again when its data, size or theme change.
import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { color } from "../lib/theme.js";

const NAMES = ["text", "border", "border-strong", "hover", "prefill", "decode", "waiting", "preempted", "cached"];
let cache = null;

/** Return the colors of the current theme, and the color of a row by its key. */
export function palette() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = document.documentElement.dataset.theme ?? (isDark ? "dark" : "light");
  if (cache?.theme !== theme) {
    cache = { theme, row: (key) => `hsl(${(key * 137.508 + 200) % 360} ${theme === "dark" ? "52% 62%" : "50% 48%"})` };
    for (const name of NAMES) cache[name] = color(`--${name}`);
  }
  return cache;
}

/** Call `draw(context, width, height, palette)` for each change. Screen readers get the same as text elsewhere. */
export function Canvas({ draw, class: name = "", ...others }) {
  const canvas = useRef();
  const [size, setSize] = useState({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => {
      setSize({ width: Math.round(entry.contentRect.width), height: Math.round(entry.contentRect.height) });
    });
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const { width, height } = size;
    if (!width || !height) return;
    const scale = devicePixelRatio || 1;
    const element = canvas.current;
    if (element.width !== width * scale || element.height !== height * scale) {
      element.width = width * scale;
      element.height = height * scale;
    }
    const context = element.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    draw(context, width, height, palette());
  });
  return html`<canvas ref=${canvas} class=${name} aria-hidden="true" ...${others}></canvas>`;
}
