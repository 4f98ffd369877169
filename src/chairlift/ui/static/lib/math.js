// Formulas of an answer: found in Markdown, and made MathML by Temml, which is loaded with the first formula.
import "../vendor/dompurify-3.4.18.min.js";

const { DOMPurify } = globalThis;

const LIBRARY = "../vendor/temml-0.13.5.min.js";
const STYLES = "../math.css";
const MAX_BLOCK_CHARS = 10_000; // a longer formula stays text
const MAX_INLINE_CHARS = 3000;
const MAX_EXPANSIONS = 1000; // of macros
const MAX_EXPANDED_CHARS = 100_000; // that the macros of one formula may become
const MAX_ELEMENTS = 12_000; // of one formula: layout takes time by the square of their number
const MAX_DEPTH = 120; // of one formula: layout takes time by the cube of the depth
const DEFINITION = /\\(?:[egx]?def|(?:future)?let|(?:re)?newcommand|providecommand)(?![A-Za-z])/;
const MAX_SIZE_EM = 40;

const BLOCK = /^ {0,3}(?:\$\$((?:\\[^]|[^\\$]|\$(?!\$))+)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n|$)/;
const PARAGRAPH_END = /\n[ \t]*\n/;
const BLOCK_START = /\n {0,3}(?:\$\$|\\\[)/;
const DISPLAY = /^(?:\$\$((?:\\[^]|[^\\$])+)\$\$(?!\$)|\\\[([^]+?)\\\])/;
const INLINE = /^(?:\\\(([^]+?)\\\)|\$((?:\\.|[^\\$`\n])+)\$(?![\w$]))/;
const NO_OPENING = /[\\\w$]/; // the dollar sign behind it begins no formula
const CLOSINGS = { $: "$", $$: "$$", "\\(": "\\)", "\\[": "\\]" };
const SOURCE = /^(?:\$\$?|\\[([])([^]*?)(?:\$\$?|\\[)\]])$/;
const COMMAND = /\\[A-Za-z]+(?:\{[^{}]*\})?/g;

/** Return whether what stands between two dollar signs is text between two prices, or between names of variables. */
function isProse(text) {
  if (text.trim() !== text) return true;
  return /^\d/.test(text) && /[A-Za-z]{2}/.test(text.replace(COMMAND, ""));
}

/** Return the start of a text, in which a formula must end, or "" where none can: many that are open cost little. */
function windowOf(text, maxChars) {
  const start = text.slice(0, maxChars);
  const opening = /^ {0,3}(\$\$?|\\[([])/.exec(start);
  if (!opening) return "";
  return start.indexOf(CLOSINGS[opening[1]], opening[0].length) > 0 ? start : "";
}

function tokenOf(type, raw, isDisplay) {
  return { type, raw, source: raw.trim(), isDisplay };
}

/** Extensions of marked: formulas between $ $, $$ $$, \( \) and \[ \]. One that is not closed is text. */
export function mathExtensions(escaped) {
  const renderer = ({ source, isDisplay }) =>
    `<code class="math-${isDisplay ? "display" : "inline"}">${escaped(source)}</code>`;
  return [
    {
      name: "mathBlock", level: "block", renderer,
      start(text) {
        const end = text.search(PARAGRAPH_END); // what is behind it would be searched again for each paragraph
        return BLOCK_START.exec(end < 0 ? text : text.slice(0, end + 1))?.index;
      },
      tokenizer(text) {
        const match = BLOCK.exec(windowOf(text, MAX_BLOCK_CHARS));
        const inner = (match?.[1] ?? match?.[2] ?? "").trim();
        return inner && !PARAGRAPH_END.test(inner) ? tokenOf("mathBlock", match[0], true) : undefined;
      },
    },
    {
      name: "mathInline", level: "inline", renderer,
      start(text) {
        let at = text.indexOf("$");
        while (at > 0 && NO_OPENING.test(text[at - 1])) at = text.indexOf("$", at + 1);
        return at < 0 ? undefined : at;
      },
      tokenizer(text) {
        const start = windowOf(text, MAX_INLINE_CHARS);
        const display = DISPLAY.exec(start);
        const match = display ?? INLINE.exec(start);
        if (!match || !(match[1] ?? match[2]).trim()) return undefined;
        const isBetweenDollars = !display && match[2] !== undefined;
        return isBetweenDollars && isProse(match[2]) ? undefined : tokenOf("mathInline", match[0], display !== null);
      },
    },
  ];
}

/** Put formulas in the place of the elements that mathExtensions have made; until Temml is loaded, their source. */
export function renderMath(fragment) {
  for (const code of fragment.querySelectorAll("code.math-inline, code.math-display")) {
    const frame = document.createElement("span");
    frame.className = code.className === "math-display" ? "math display" : "math";
    frame.textContent = code.textContent;
    code.replaceWith(frame);
    if (globalThis.temml) render(frame);
    else loadLibrary().then(() => frame.isConnected && render(frame), () => {}); // without Temml the source stays
  }
}

function render(frame) {
  const source = frame.textContent;
  const isDisplay = frame.classList.contains("display");
  try {
    frame.replaceChildren(formulaOf(SOURCE.exec(source)[1], isDisplay));
    if (isDisplay) {
      frame.tabIndex = 0; // a wide formula scrolls
      frame.setAttribute("role", "group");
      frame.setAttribute("aria-label", "formula");
    }
  } catch (error) {
    frame.classList.add("invalid");
    frame.title = String(error.message).split("\n")[0].slice(0, 200);
  }
}

const SAFE = {
  USE_PROFILES: { mathMl: true },
  FORBID_ATTR: ["href", "id", "name", "style", "xlink:href"],
  ADD_ATTR: ["class", "data-style"],
  ADD_URI_SAFE_ATTR: ["data-style"],
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const STYLE_PROPERTIES =
  /^(?:color|padding(?:-\w+)?|border(?:-(?:top|bottom|left|right|color))?|width|font-(?:size|style|weight))$/;

/** Return MathML of TeX. Raises an Error for TeX that is invalid, too deep, or becomes too long by its macros. */
function formulaOf(tex, displayMode) {
  // A macro of the formula itself may have nearly all of its text, and each expansion adds that.
  const most = DEFINITION.test(tex) ? Math.floor(MAX_EXPANDED_CHARS / tex.length) : MAX_EXPANSIONS;
  const text = globalThis.temml.renderToString(tex, {
    displayMode, throwOnError: true, trust: false, maxExpand: Math.min(MAX_EXPANSIONS, most),
    maxSize: [MAX_SIZE_EM, MAX_SIZE_EM], macros: {},
  });
  const numParts = text.split("<m").length - 1;
  if (numParts > MAX_ELEMENTS) throw new Error(`The formula has ${numParts} parts; the limit is ${MAX_ELEMENTS}.`);
  // The content security policy forbids attributes with styles; a script may set their properties one by one.
  const fragment = DOMPurify.sanitize(text.replaceAll(' style="', ' data-style="'), SAFE);
  if (depthOf(fragment) > MAX_DEPTH) throw new Error(`The formula is nested too deeply; the limit is ${MAX_DEPTH}.`);
  for (const element of fragment.querySelectorAll("[data-style]")) {
    for (const declaration of element.dataset.style.split(";")) {
      const [name, value = ""] = declaration.split(":").map((part) => part.trim());
      if (STYLE_PROPERTIES.test(name)) element.style.setProperty(name, value);
    }
    element.removeAttribute("data-style");
  }
  return fragment;
}

function depthOf(fragment) {
  const depths = new Map([[fragment, 0]]);
  for (const element of fragment.querySelectorAll("*")) depths.set(element, depths.get(element.parentNode) + 1);
  return Math.max(...depths.values());
}

let loading = null;

function loadLibrary() {
  loading ??= new Promise((resolve, reject) => {
    const styles = document.createElement("link");
    styles.rel = "stylesheet";
    styles.href = new URL(STYLES, import.meta.url).href;
    const script = document.createElement("script");
    script.src = new URL(LIBRARY, import.meta.url).href;
    script.onload = resolve;
    script.onerror = () => {
      script.remove();
      styles.remove();
      loading = null; // the next formula tries again
      reject(new Error("Temml could not be loaded."));
    };
    document.head.append(styles, script);
  });
  return loading;
}
