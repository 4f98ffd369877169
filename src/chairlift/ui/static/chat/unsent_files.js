// UnsentFiles: the files that the next message will have, while they are read and until they are sent.
import { announce } from "../lib/announcer.js";
import { Changes } from "../lib/changes.js";
import { newId } from "../lib/ids.js";
import { keepText, keptText } from "../lib/kept.js";
import { AttachmentError, checkRoom, MAX_FILES, textOfFile } from "./attachments.js";

const UNSENT = "chairlift.unsent-files";

export class UnsentFiles {
  constructor() {
    this.files = keptFiles(); // {id, name, size, text}; text is null while it is read
    this.errors = []; // sentences about the files that were added last
    this.aborts = new Map(); // id -> AbortController of the reading
    this.changes = new Changes();
  }

  get isReading() {
    return this.aborts.size > 0;
  }

  /** Read files of the browser; those that cannot be attached become `errors`. */
  async add(files) {
    this.errors = [];
    const room = MAX_FILES - this.files.length;
    const taken = [...files].slice(0, room);
    if (files.length > room) {
      this.errors.push(`A message may have at most ${MAX_FILES} files; ${files.length - taken.length} were left out.`);
    }
    await Promise.all(taken.map((file) => this.read(file)));
  }

  async read(file) {
    const id = newId();
    const abort = new AbortController();
    this.aborts.set(id, abort);
    this.set([...this.files, { id, name: file.name, size: file.size, text: null }]);
    try {
      const text = await textOfFile(file, abort.signal);
      abort.signal.throwIfAborted();
      checkRoom(this.files.filter((each) => each.text !== null), { name: file.name, text });
      this.aborts.delete(id);
      this.set(this.files.map((each) => (each.id === id ? { ...each, text } : each)));
      announce(`${file.name} is attached.`);
    } catch (error) {
      this.aborts.delete(id);
      if (abort.signal.aborted) return;
      this.errors = [...this.errors, messageOf(error, file.name)];
      this.set(this.files.filter((each) => each.id !== id));
    }
  }

  remove(id) {
    const { name } = this.files.find((each) => each.id === id);
    this.aborts.get(id)?.abort();
    this.aborts.delete(id);
    this.set(this.files.filter((each) => each.id !== id));
    announce(`${name} is removed.`);
  }

  clearErrors() {
    this.errors = [];
    this.set(this.files);
  }

  /** Return the files, which are sent now, and keep none. */
  take() {
    const { files } = this;
    this.errors = [];
    this.set([]);
    return files;
  }

  set(files) {
    this.files = files;
    const read = files.filter((each) => each.text !== null);
    keepText(UNSENT, read.length ? JSON.stringify(read) : null, "sessionStorage");
    this.changes.notify();
  }
}

function messageOf(error, name) {
  return error instanceof AttachmentError ? error.message : `“${name}” could not be read: ${error.message}`;
}

function keptFiles() {
  try {
    const files = JSON.parse(keptText(UNSENT, "sessionStorage") ?? "[]");
    return Array.isArray(files) ? files : [];
  } catch {
    return [];
  }
}
