// Text of a PDF, read by pdf.js in a worker; both are loaded with the first PDF.
import { characterMap } from "./character_maps.js";

const LIBRARY = "../vendor/pdfjs-5.6.205.min.js";
const WORKER = "../vendor/pdfjs-5.6.205.worker.min.js";

// That show text on a page, and that the worker keeps between pages: a font takes up to 2 MB, however short it is in
// the file. Fonts that show nothing are not known here.
const MAX_FONTS = 100;

/** Why a PDF is not read: "password", "invalid", "empty", "encoding", "maps", "fonts", "long" or "unavailable". */
export class PdfError extends Error {
  constructor(reason, message = reason) {
    super(message);
    this.reason = reason;
  }
}

/**
 * Return the text of a PDF, which begins each page with its number; it has at most `maxChars`. `data` is given away.
 * Raises PdfError, and AbortError for an aborted signal.
 */
export async function textOfPdf(data, { maxChars, signal }) {
  const { getDocument, GlobalWorkerOptions } = await loadedLibrary();
  signal.throwIfAborted();
  GlobalWorkerOptions.workerSrc = new URL(WORKER, import.meta.url).href;
  const mapErrors = [];
  // Nothing is drawn, so no fonts, images or forms are read, and nothing is fetched but character maps.
  const task = getDocument({
    BinaryDataFactory: mapFactory(mapErrors),
    data, verbosity: 0, isEvalSupported: false, disableFontFace: true, useSystemFonts: true, useWorkerFetch: false,
    useWasm: false, enableXfa: false, isImageDecoderSupported: false, isOffscreenCanvasSupported: false,
  });
  const stop = () => task.destroy();
  signal.addEventListener("abort", stop);
  try {
    return await textOfPages(await task.promise, maxChars, mapErrors);
  } catch (error) {
    signal.throwIfAborted();
    throw pdfErrorOf(error);
  } finally {
    signal.removeEventListener("abort", stop);
    task.destroy().catch(() => {});
  }
}

/** Return the class by which pdf.js fetches character maps; `errors` grows by what was raised. */
function mapFactory(errors) {
  return class {
    async fetch({ kind, filename }) {
      if (kind !== "cMapUrl") throw new Error(`Nothing of the kind ${kind} is needed for text.`);
      try {
        return await characterMap(filename);
      } catch (error) {
        errors.push(error);
        throw error;
      }
    }
  };
}

async function textOfPages(document, maxChars, mapErrors) {
  const pages = [];
  const fonts = new Set(); // that the worker keeps
  let numChars = 0;
  let hasText = false;
  for (let number = 1; number <= document.numPages; number += 1) {
    const page = await document.getPage(number);
    const text = await textOfPage(page, fonts);
    // pdf.js goes on without the text of a font whose map is missing.
    if (mapErrors.some(({ isAbsent }) => !isAbsent)) throw new PdfError("maps");
    page.cleanup();
    hasText ||= text.trim() !== "";
    pages.push(`[Page ${number}]\n${wellFormed(text.trim())}`);
    numChars += pages.at(-1).length;
    if (numChars > maxChars) throw new PdfError("long");
    if (fonts.size > MAX_FONTS) {
      await document.cleanup(); // forgets the fonts
      fonts.clear();
    }
  }
  if (!hasText) throw new PdfError(mapErrors.length ? "encoding" : "empty");
  return pages.join("\n\n");
}

/** Return the text of a page; `fonts` grows by the names of its fonts. Raises PdfError when they are too many. */
async function textOfPage(page, fonts) {
  const others = fonts.size;
  const reader = page.streamTextContent().getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text;
    for (const name of Object.keys(value.styles)) fonts.add(name);
    if (fonts.size - others > MAX_FONTS) throw new PdfError("fonts", `A page has more than ${MAX_FONTS} fonts.`);
    for (const { str = "", hasEOL = false } of value.items) text += hasEOL ? `${str}\n` : str;
  }
}

/** Return a text without the characters that JSON or a tokenizer does not take. */
function wellFormed(text) {
  return text.replace(/[\0\p{Surrogate}]/gu, "\uFFFD");
}

function pdfErrorOf(error) {
  if (error instanceof PdfError) return error;
  if (error?.name === "PasswordException") return new PdfError("password");
  return new PdfError("invalid", error?.message);
}

let loading = null;

async function loadedLibrary() {
  loading ??= import(LIBRARY);
  try {
    return await loading;
  } catch {
    loading = null; // the next PDF tries again; browsers may keep the failure until the page is loaded again
    throw new PdfError("unavailable");
  }
}
