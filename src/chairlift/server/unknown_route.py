"""unknown_route: the error of a path without a route, which names the route that the client probably meant."""

import re
from collections.abc import Collection

from chairlift.core.errors import NotFound
from chairlift.server.openai import chat_completions, completions

MAX_PATH_CHARS = 128
"""Characters of a path that a message repeats."""

MAX_SEARCHED_CHARS = 1024
"""A longer path is no mistake of a client; no near route is searched for."""

OTHER_APIS = {
    "/api/chat": ("the Ollama API", chat_completions.PATH), "/api/generate": ("the Ollama API", completions.PATH),
    "/api/tags": ("the Ollama API", "/v1/models"), "/completion": ("llama.cpp's API", completions.PATH),
    "/infill": ("llama.cpp's API", completions.PATH),
    "/generate": ("the API of Text Generation Inference", completions.PATH),
    "/generate_stream": ("the API of Text Generation Inference", completions.PATH),
    "/v1/messages": ("the Anthropic API", chat_completions.PATH),
    "/v1/responses": ("OpenAI's Responses API", chat_completions.PATH),
}  # fmt: skip
"""Path of another API -> its name, and the route here that does the same."""


def unknown_route(path: str, routes: Collection[str]) -> NotFound:
    """Return the error of a path that no route has; `routes` are the paths of those without parameters."""
    message = f"there is no route {_printable(path)}"
    plain = "/" + re.sub(r"/+", "/", path[: MAX_SEARCHED_CHARS + 1]).strip("/")
    if len(plain) > MAX_SEARCHED_CHARS:
        return NotFound(f"{message}; /docs lists the routes")
    if plain in OTHER_APIS:
        api, route = OTHER_APIS[plain]
        return NotFound(f"{message}, which is of {api}; use {route} of the OpenAI API")
    if re.match(r"(/v1){2,}/", plain) and (route := re.sub(r"^(/v1)+", "/v1", plain)) in routes:
        return NotFound(f"{message}; use {route}: the client's base URL must end with a single /v1")
    if plain in routes:
        return NotFound(f"{message}; use {plain}")
    if (route := f"/v1{plain}") in routes:
        return NotFound(f"{message}; use {route}: the client's base URL must end with /v1")
    near = [each for each in routes if each.startswith("/v1/") and plain.endswith((each, each.removeprefix("/v1")))]
    if near:
        return NotFound(f"{message}; use {max(near, key=len)}")
    return NotFound(f"{message}; /docs lists the routes")


def _printable(path: str) -> str:
    """Return the beginning of a path with every character that is not printable ASCII replaced by "?"."""
    shown = "".join(char if " " < char <= "~" else "?" for char in path[:MAX_PATH_CHARS])
    return shown if len(path) <= MAX_PATH_CHARS else f"{shown}..."
