// The server's API: adds the key, asks for one where the server needs it, and turns failures into ApiError.
import { readEvents } from "./sse.js";

/** A request that failed: `status` is the HTTP status, or 0 where no response came. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

const QUESTIONS = {
  user: "This server needs an API key.",
  admin: "This view needs an admin key of the server.",
};

/** Requests with the keys of `keys`. Paths may begin with a slash; they are below the page's own address. */
export class Api {
  constructor(keys) {
    this.keys = keys;
  }

  /** Return the JSON value of a response. Options: method, body, signal, admin, headers. */
  async json(path, options = {}) {
    const response = await this.request(path, options);
    try {
      return await response.json();
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new ApiError("The server's answer is no JSON.", { status: response.status, code: "bad_answer" });
    }
  }

  /** Return the text of a response. */
  async text(path, options = {}) {
    return (await this.request(path, options)).text();
  }

  /**
   * Yield {event, data} for each event of a stream; the reader throws TypeError where the connection is cut.
   * `onResponse` gets the response before its first event.
   */
  async *events(path, { onResponse, ...options } = {}) {
    const response = await this.request(path, options);
    onResponse?.(response);
    yield* readEvents(response);
  }

  /** Return the response. Raises ApiError, and AbortError for an aborted signal. */
  async request(path, { method, body, signal, admin = false, headers = {} } = {}) {
    const kind = admin ? "admin" : "user";
    for (;;) {
      const key = this.keys.get(kind);
      const response = await send(path.replace(/^\//, ""), {
        method: method ?? (body === undefined ? "GET" : "POST"),
        body: body === undefined ? undefined : JSON.stringify(body),
        headers: {
          ...(body === undefined ? {} : { "content-type": "application/json" }),
          ...(key ? { authorization: `Bearer ${key}` } : {}),
          ...headers,
        },
        signal, cache: "no-store",
      });
      if (response.ok) return response;
      const error = await errorOf(response);
      const isAboutKey = response.status === 401 || (response.status === 403 && key !== "");
      if (!isAboutKey) throw error;
      if (this.keys.get(kind) !== key) continue; // another request has asked in the meantime
      if (!(await this.keys.ask(kind, questionOf(kind, key, error)))) throw error;
    }
  }
}

function questionOf(kind, key, error) {
  if (!key) return QUESTIONS[kind];
  if (error.status === 401) return "The server did not accept this key. Check it and enter it again.";
  return `The server did not accept this key here: ${error.message}.`;
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("The server does not respond.", { code: "unreachable" });
  }
}

async function errorOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy in front of the server may answer with something else than JSON.
  }
  const retryAfter = Number(response.headers.get("retry-after")) || null;
  const message = error.message ?? `The server answered with status ${response.status}.`;
  return new ApiError(message, { status: response.status, code: error.code ?? "", retryAfter });
}
