// Attachments: files whose text goes into a message of the user, {id, name, size, text}; the browser reads the text.
import { PdfError, textOfPdf } from "../lib/pdf_text.js";
import { bytes } from "../lib/format.js";

export const MAX_FILES = 10; // of one message
const MAX_TEXT_BYTES = 1_000_000; // of one file
const MAX_TOTAL_BYTES = 3_000_000; // of the texts of a message; a server takes bodies of 4 MB
const MAX_PDF_BYTES = 50_000_000;
const PDF_HEAD_BYTES = 1024;
const PDF_HEAD = /^[^!-~]*%PDF-/; // a file that is not called a PDF is one if no other text comes first
const PDF_REASONS = {
  password: "is protected by a password. Save it without one, and attach that",
  invalid: "is broken, or it is no PDF",
  empty: "has no text that can be read: its pages are pictures, or its fonts do not say which characters they show. " +
    "It needs text recognition first",
  encoding: "has text in an encoding for which this page has no character map. It needs text recognition first",
  fonts: "has more than 100 fonts on one page, which is the most",
  maps: "could not be read: the server did not send the character maps that its fonts need",
  unavailable: "could not be read: the server did not send the reader of PDFs",
};

/** A file that cannot be attached; the message is a sentence that names it. */
export class AttachmentError extends Error {}

/** Return the text of a file. Raises AttachmentError, and AbortError for an aborted signal. */
export async function textOfFile(file, signal) {
  const isPdf = file.type === "application/pdf" || /\.pdf$/i.test(file.name);
  checkSize(file, isPdf ? MAX_PDF_BYTES : MAX_TEXT_BYTES, isPdf ? "a PDF" : "a text file");
  let data;
  try {
    data = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new AttachmentError(`“${file.name}” could not be read. It may be a folder, or it has changed.`);
  }
  signal.throwIfAborted();
  if (isPdf || isPdfData(data)) return pdfText(file.name, data, signal);
  return plainText(file.name, data);
}

function checkSize({ name, size }, most, kind) {
  if (size === 0) throw new AttachmentError(`“${name}” is empty.`);
  if (size > most) {
    throw new AttachmentError(`“${name}” has ${bytes(size)}; ${kind} may have at most ${bytes(most)}.`);
  }
}

function isPdfData(data) {
  return PDF_HEAD.test(new TextDecoder("latin1").decode(data.subarray(0, PDF_HEAD_BYTES)));
}

function plainText(name, data) {
  if (!data.includes(0)) {
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(data);
    } catch {
      // It is not UTF-8, which all text files have today.
    }
  }
  throw new AttachmentError(`“${name}” is no text: files of text in UTF-8 and PDFs can be attached.`);
}

async function pdfText(name, data, signal) {
  try {
    const text = await textOfPdf(data, { maxChars: MAX_TEXT_BYTES, signal });
    const size = numBytes(text);
    if (size > MAX_TEXT_BYTES) throw new PdfError("long");
    return text;
  } catch (error) {
    if (!(error instanceof PdfError)) throw error;
    const reason = PDF_REASONS[error.reason] ?? `has more than ${bytes(MAX_TEXT_BYTES)} of text, which is the most`;
    throw new AttachmentError(`“${name}” ${reason}.`);
  }
}

/** Raise AttachmentError where another file does not fit beside the others of a message. */
export function checkRoom(others, { name, text }) {
  const total = others.reduce((sum, other) => sum + numBytes(other.text), numBytes(text));
  if (total <= MAX_TOTAL_BYTES) return;
  throw new AttachmentError(
    `“${name}” does not fit: the files would have ${bytes(total)} of text, and a message may have at most ` +
    `${bytes(MAX_TOTAL_BYTES)}.`,
  );
}

function numBytes(text) {
  return new TextEncoder().encode(text).length;
}

/** Return the content of a user's message as it is sent: its files, each between tags with its name, and its text. */
export function contentWithFiles({ content, files = [] }) {
  return [...files.map(blockOf), content].filter((part) => part.trim() !== "").join("\n\n");
}

function blockOf({ name, text }) {
  let tag = "file";
  for (let number = 2; text.includes(`</${tag}>`); number += 1) tag = `file-${number}`;
  const shown = name.replace(/[\n\r"<>&]/g, "_");
  return `<${tag} name="${shown}">\n${text.replace(/\n$/, "")}\n</${tag}>`;
}
