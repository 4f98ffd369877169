"""unknown_route: the error of a path without a route, which names the route that the client probably meant."""

import re
from collections.abc import Collection

from chairlift.core.errors import NotFound
from chairlift.protocol.error_formats import ANTHROPIC_PATHS
from chairlift.server.openai import completions
from chairlift.web.error_responses import no_route

MAX_SEARCHED_CHARS = 1024
"""A longer path is not a mistake of a client; no near route is searched for."""

OTHER_APIS = {
    "/completion": ("llama.cpp's API", completions.PATH),
    "/infill": ("llama.cpp's API", completions.PATH),
    "/generate": ("the API of Text Generation Inference", completions.PATH),
    "/generate_stream": ("the API of Text Generation Inference", completions.PATH),
}  # fmt: skip
"""Path of another API -> its name, and the route here that does the same."""


OLLAMA_STORAGE = re.compile(r"/api/(pull|push|create|copy|delete|blobs/.+)")
"""Paths with which Ollama's API manages the models of a server."""


def unknown_route(path: str, routes: Collection[str]) -> NotFound:
    """Return the error of a path that no route has; `routes` are the paths of those without parameters."""
    plain = "/" + re.sub(r"/+", "/", path[: MAX_SEARCHED_CHARS + 1]).strip("/")
    if len(plain) > MAX_SEARCHED_CHARS:
        return no_route(path)
    if plain in OTHER_APIS:
        api, route = OTHER_APIS[plain]
        return no_route(path, f", which is of {api}; use {route} of the OpenAI API")
    if OLLAMA_STORAGE.fullmatch(plain):
        return no_route(
            path, ": this server has the one model that it was started with, and cannot fetch, make, copy or delete any"
        )
    if re.match(r"(/v1){2,}/", plain) and (route := re.sub(r"^(/v1)+", "/v1", plain)) in routes:
        end = "without /v1" if route in ANTHROPIC_PATHS else "with a single /v1"
        return no_route(path, f"; use {route}: the client's base URL must end {end}")
    if plain in routes:
        return no_route(path, f"; use {plain}")
    if (route := f"/v1{plain}") in routes:
        return no_route(path, f"; use {route}: the client's base URL must end with /v1")
    near = [each for each in routes if each.startswith("/v1/") and plain.endswith((each, each.removeprefix("/v1")))]
    if near:
        return no_route(path, f"; use {max(near, key=len)}")
    return no_route(path)
