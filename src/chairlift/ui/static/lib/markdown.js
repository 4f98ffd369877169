// Markdown of a model's answer, which is not trusted: to blocks of text, and from a block to safe elements.
import { appendHighlighted } from "./highlight.js";
import { mathExtensions, renderMath } from "./math.js";
import { Lexer, Marked, Parser } from "../vendor/marked-18.2.1.esm.js";
import "../vendor/dompurify-3.4.18.min.js";

const { DOMPurify } = globalThis;

/** HTML tags that models use within text; all other HTML is shown as text. */
const TEXT_TAG =
  /^<\/?(?:br|sub|sup|kbd|b|strong|i|em|u|ins|s|del|mark|small|code|details|summary)\s*\/?>$|^<details\s+open\s*>$/i;
const DETAILS = /<(\/?)details(?:\s+open)?\s*>/gi;

const SAFE = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "del", "details", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i",
    "input", "ins", "kbd", "li", "mark", "ol", "p", "pre", "s", "small", "strong", "sub", "summary", "sup", "table",
    "tbody", "td", "th", "thead", "tr", "u", "ul", "#text",
  ],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "open", "start", "title", "type"],
  // DOMPurify takes the value of every attribute for an address, except of these.
  ADD_URI_SAFE_ATTR: ["align", "checked", "class", "disabled", "open", "start", "title", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const renderer = {
  html({ text }) {
    return text.replace(/<[^>]*>?/g, (tag) => (TEXT_TAG.test(tag) ? tag : escaped(tag)));
  },

  image({ href, text }) {
    // An image's address can carry text of the conversation to another server, so it is a link.
    const label = escaped(text || "image");
    return /^https?:\/\//i.test(href) ? `<a href="${escaped(href)}">${label}</a>` : label;
  },
};

const OPTIONS = new Marked({ gfm: true, breaks: true, renderer, extensions: mathExtensions(escaped) }).defaults;

function escaped(text) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (char) => entities[char]);
}

/**
 * Return the blocks of a text: [{raw, tokens}]. While a text grows, all blocks but the last stay equal.
 * Text that is nested too deeply to be taken apart is one block without tokens.
 */
export function blocksOf(text) {
  let tokens;
  try {
    tokens = new Lexer(OPTIONS).lex(text);
  } catch {
    return [{ raw: text, tokens: null }];
  }
  const blocks = [];
  let depth = 0; // of <details>, whose content is in tokens of its own
  for (const token of tokens) {
    if (token.type === "space" || token.type === "def") continue;
    if (depth > 0) {
      blocks.at(-1).raw += token.raw;
      blocks.at(-1).tokens.push(token);
    } else blocks.push({ raw: token.raw, tokens: [token] });
    if (token.type !== "html") continue;
    for (const [, slash] of token.raw.matchAll(DETAILS)) depth = Math.max(0, depth + (slash ? -1 : 1));
  }
  return blocks;
}

/** Return a document fragment of a block, in which no script can run; plain text where it cannot be rendered. */
export function fragmentOf(block) {
  try {
    if (block.tokens) return renderedFragment(block);
  } catch {
    // The text is nested too deeply for the browser's stack.
  }
  const fragment = document.createDocumentFragment();
  fragment.append(element("p", "plain", block.raw));
  return fragment;
}

function renderedFragment(block) {
  const fragment = DOMPurify.sanitize(Parser.parse(block.tokens, OPTIONS), SAFE);
  for (const link of fragment.querySelectorAll("a")) {
    if (link.hasAttribute("href")) {
      link.target = "_blank";
      link.rel = "noopener noreferrer nofollow";
    }
  }
  for (const table of fragment.querySelectorAll("table")) table.replaceWith(scrollable(table));
  for (const box of fragment.querySelectorAll("input")) {
    if (box.type === "checkbox") {
      box.disabled = true;
      box.setAttribute("aria-label", box.checked ? "done" : "to do");
    } else box.remove();
  }
  for (const code of fragment.querySelectorAll("pre > code")) code.parentElement.replaceWith(codeBlock(code));
  renderMath(fragment);
  for (const element of fragment.querySelectorAll("[class]:not(.code, .code *, .table, .math, .math *)")) {
    element.removeAttribute("class");
  }
  return fragment;
}

function scrollable(table) {
  const frame = element("div", "table", "");
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "table");
  frame.append(table.cloneNode(true));
  return frame;
}

function codeBlock(code) {
  const language = /^language-([\w+#.-]{1,30})$/.exec(code.className)?.[1] ?? "";
  const frame = element("div", "code", "");
  const head = element("div", "code-head", "");
  const button = element("button", "code-copy", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", language ? `Copy ${language} code` : "Copy code");
  button.addEventListener("click", () => copy(button, code.textContent));
  head.append(element("span", "", language || "text"), button);
  const pre = element("pre", "", "");
  pre.tabIndex = 0;
  const inner = element("code", "", "");
  appendHighlighted(inner, code.textContent, language);
  pre.append(inner);
  frame.append(head, pre);
  return frame;
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

async function copy(button, text) {
  button.textContent = (await copyText(text)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

/** Copy a text to the clipboard; returns whether it worked. Browsers offer the clipboard over HTTPS and localhost. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
