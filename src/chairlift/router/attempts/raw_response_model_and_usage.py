"""rename_model, rename_models and UsageReader: the model's name and the token counts in a response that is not parsed.

All bytes but the name stay as the replica has sent them. Servers write `model` before or behind the members that are
large, so only the small ones on one side of it are matched.
"""

import re

import orjson

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_SCALAR = rb"(?:" + _STRING + rb"|[-+.\w]++)"
_FLAT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb"|" + _FLAT + rb")*+\}"
_LIST = rb'\[(?:[^\[\]"]++|' + _STRING + rb")*+\]"
_MEMBER = rb"\s*+" + _STRING + rb"\s*+:\s*+(?:" + rb"|".join((_SCALAR, _OBJECT, _LIST)) + rb")"
_MODEL = rb'"model"\s*+:\s*+(?P<model>' + _STRING + rb")"
_HEAD = re.compile(rb"\s*+\{(?:\s*+" + _STRING + rb"\s*+:\s*+" + _SCALAR + rb"\s*+,)*?\s*+" + _MODEL)
_TAIL = re.compile(_MODEL + rb"(?:\s*+," + _MEMBER + rb")*+\s*+\}\s*+")
_USAGE = re.compile(rb'"usage"\s*+:\s*+(' + _OBJECT + rb")")
_END = (b"data: [DONE]", b"data:[DONE]")
_EVENT = re.compile(rb"(?P<field>(?:\A|[\r\n])data: ?)(?P<data>\{[^\r\n]*+)")


def rename_model(body: bytes, name: str) -> bytes:
    """Return a JSON object whose member `model` has another value; anything else is returned unchanged.

    The object may be cut anywhere behind that member.
    """
    match = _HEAD.match(body) or _TAIL.fullmatch(body, max(0, body.rfind(b'"model"')))
    if match is None:
        return body
    return body[: match.start("model")] + orjson.dumps(name) + body[match.end("model") :]


def rename_models(events: bytes, name: str) -> bytes:
    """Return the events of a stream, each with another name of the model."""
    return _EVENT.sub(lambda event: event["field"] + rename_model(event["data"], name), events)


class UsageReader:
    """Counts the tokens of a response: as its last `usage` states them, else one for each event of a stream.

    Attributes:
        num_events: events of the stream, without the one that ends it.
        total_tokens: tokens of prompt and output in the last `usage`; None without one.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self.total_tokens: int | None = None

    def read(self, payload: bytes) -> None:
        """Read a whole body, or bytes of a stream; an event that is split between two reads may be missed."""
        self.num_events += payload.count(b"\ndata:") + payload.startswith(b"data:") - payload.rstrip().endswith(_END)
        for match in _USAGE.finditer(payload):
            try:
                usage = orjson.loads(match[1])
            except orjson.JSONDecodeError:
                continue
            counts = [usage.get("prompt_tokens"), usage.get("completion_tokens", 0)]  # embeddings have no completion
            if all(type(count) is int and count >= 0 for count in counts):
                self.total_tokens = sum(counts)
