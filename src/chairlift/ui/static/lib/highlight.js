// Colors for code: comments, strings, numbers and keywords, by rules that hold for most languages.

const KEYWORDS = new Set(
  ("abstract and as async await begin bool boolean break case catch char class const continue def default defer del " +
    "do double elif else end enum except export extends false final finally float fn for from func function global " +
    "go if impl implements import in int interface is lambda let long loop match mod module mut namespace new nil " +
    "None nonlocal not null or package pass private protected pub public raise return self select static string " +
    "struct super switch then this throw throws trait true True False try type typeof union use using var void " +
    "where while with yield SELECT FROM WHERE JOIN LEFT INNER ON GROUP BY ORDER INSERT INTO VALUES UPDATE SET " +
    "DELETE CREATE TABLE AND OR NOT NULL AS LIMIT fi done echo").split(" "),
);
const HASH_COMMENTS =
  /^(?:py|python|sh|bash|shell|zsh|console|rb|ruby|yaml|yml|toml|r|perl|make|makefile|dockerfile|conf)$/i;
const DASH_COMMENTS = /^(?:sql|lua|haskell|hs)$/i;
const PLAIN = /^(?:|text|txt|plain|plaintext|markdown|md|diff|log|output)$/i;
const MAX_CHARS = 50_000;

const STRING = new RegExp([
  /"""[\s\S]*?(?:"""|$)/, /'''[\s\S]*?(?:'''|$)/, /"(?:\\.|[^"\\\n])*"?/, /'(?:\\.|[^'\\\n])*'?/, /`(?:\\.|[^`\\])*`?/,
].map((rule) => rule.source).join("|"));
const NUMBER = /\b(?:0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b/;
const NAME = /[A-Za-z_$][\w$]*/;

function rulesOf(language) {
  const comment = HASH_COMMENTS.test(language) ? /#[^\n]*/
    : DASH_COMMENTS.test(language) ? /--[^\n]*/
      : /\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|<!--[\s\S]*?(?:-->|$)/;
  const parts = [["comment", comment], ["string", STRING], ["number", NUMBER], ["name", NAME]];
  return new RegExp(parts.map(([name, rule]) => `(?<${name}>${rule.source})`).join("|"), "g");
}

/** Append code to an element: text, and a span with a class for each comment, string, number and keyword. */
export function appendHighlighted(element, code, language) {
  if (PLAIN.test(language) || code.length > MAX_CHARS) {
    element.append(code);
    return;
  }
  let end = 0;
  for (const match of code.matchAll(rulesOf(language))) {
    const { comment, string, number, name } = match.groups;
    const className = comment ? "c" : string ? "s" : number ? "n" : classOfName(name, code[match.index + name.length]);
    if (!className) continue;
    element.append(code.slice(end, match.index));
    const span = document.createElement("span");
    span.className = className;
    span.textContent = match[0];
    element.append(span);
    end = match.index + match[0].length;
  }
  element.append(code.slice(end));
}

function classOfName(name, next) {
  if (KEYWORDS.has(name)) return "k";
  return next === "(" ? "f" : "";
}
