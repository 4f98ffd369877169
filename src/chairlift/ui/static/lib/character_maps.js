// Character maps (CMaps) of Chinese, Japanese and Korean fonts, from an archive that is loaded with the first of them.

const ARCHIVE = "../vendor/pdfjs-cmaps-5.6.205.zip";
// Sizes of parts of a zip archive. The numbers below are the positions of their fields.
const END_BYTES = 22; // the record at the end of an archive without a comment
const END_SIGNATURE = 0x06054b50;
const ENTRY_BYTES = 46; // of the central directory, without the name
const HEADER_BYTES = 30; // in front of the content, without the name

/** Why a character map is missing: `isAbsent` is true if the archive does not have it, else it was not loaded. */
export class CharacterMapError extends Error {
  constructor(name, isAbsent) {
    super(`The character map ${name} ${isAbsent ? "is not in the archive" : "could not be loaded"}.`);
    this.isAbsent = isAbsent;
  }
}

/** Return the bytes of a map in the binary form of pdf.js, such as "90ms-RKSJ-H.bcmap". Raises CharacterMapError. */
export async function characterMap(name) {
  let maps;
  try {
    maps = await loadedArchive();
  } catch {
    throw new CharacterMapError(name, false);
  }
  if (!maps.has(name)) throw new CharacterMapError(name, true);
  return maps.get(name);
}

let loading = null;

async function loadedArchive() {
  loading ??= load();
  const own = loading;
  try {
    return await own;
  } catch (error) {
    if (loading === own) loading = null; // the next font tries again
    throw error;
  }
}

async function load() {
  const response = await fetch(new URL(ARCHIVE, import.meta.url));
  if (!response.ok) throw new Error(`status ${response.status}`);
  return entriesOf(await response.arrayBuffer());
}

/** Return the entries of a zip archive, which are not compressed: name -> bytes. */
function entriesOf(buffer) {
  const view = new DataView(buffer);
  const end = buffer.byteLength - END_BYTES;
  if (end < 0 || view.getUint32(end, true) !== END_SIGNATURE) throw new Error("not an archive");
  const entries = new Map();
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left -= 1) {
    const numNameBytes = view.getUint16(at + 28, true);
    const name = new TextDecoder().decode(new Uint8Array(buffer, at + ENTRY_BYTES, numNameBytes));
    const header = view.getUint32(at + 42, true);
    const start = header + HEADER_BYTES + view.getUint16(header + 26, true) + view.getUint16(header + 28, true);
    entries.set(name, new Uint8Array(buffer.slice(start, start + view.getUint32(at + 20, true))));
    at += ENTRY_BYTES + numNameBytes + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  return entries;
}
