"""ScriptedResponse: the bytes of one response of a scripted replica, as a Chairlift server writes them."""

import re
import time
from dataclasses import dataclass
from typing import Any

import orjson

MODEL = "fake"
VERSION = "0.1.0"
FINGERPRINT = "chairlift-0.1.0"
WEIGHTS_FINGERPRINT = "787be5fcde2524bc2c2211d971aa6ffb"
TEXT = b"the quick brown fox jumps over a lazy dog and then it rests for some time"
WORDS = tuple(b" " + word for word in TEXT.split())
PROMPT_TOKENS = 20
NUMBER = re.compile(r"\d+")
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
"""End of a chunked body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseForm:
    """What a request asks for.

    Attributes:
        is_chat: whether it is for /v1/chat/completions, else for /v1/completions.
        is_streamed: whether the response is a stream of events.
        reports_progress: whether a response that is not streamed is preceded by progress events.
        returns_token_ids: whether each chunk has token ids and position.
        includes_usage: whether the stream ends with token counts.
        num_tokens: length of the output.
        number: the number with which the prompt begins, 0 without one.
    """

    is_chat: bool
    is_streamed: bool
    reports_progress: bool
    returns_token_ids: bool
    includes_usage: bool
    num_tokens: int
    number: int

    @classmethod
    def of(cls, path: bytes, body: bytes, *, reports_progress: bool) -> "ResponseForm":
        """Return the form of a request with this path and JSON body."""
        fields: dict[str, Any] = orjson.loads(body)
        options = fields.get("stream_options") or {}
        prompt = fields["messages"][-1]["content"] if "messages" in fields else fields.get("prompt", "")
        number = NUMBER.match(prompt) if isinstance(prompt, str) else None
        return cls(
            is_chat=path == b"/v1/chat/completions",
            is_streamed=fields.get("stream") is True,
            reports_progress=reports_progress,
            returns_token_ids=fields.get("return_token_ids") is True,
            includes_usage=options.get("include_usage") is True,
            num_tokens=int(fields.get("max_tokens") or fields.get("max_completion_tokens") or 16),
            number=int(number[0]) if number else 0,
        )


class ScriptedResponse:
    """Writes one response; each token is an event, and an HTTP chunk, of its own.

    Attributes:
        num_tokens: length of the output; a lower number ends a stream early.
        num_sent: tokens that were written so far.
    """

    def __init__(self, form: ResponseForm, request_id: str) -> None:
        self.form = form
        self.num_tokens = form.num_tokens
        self.num_sent = 0
        self._id = f"{'chatcmpl' if form.is_chat else 'cmpl'}-{request_id}"
        self._envelope = self._encode_envelope(".chunk" if form.is_chat else "")
        self._before = self._envelope + b',"choices":[{"index":0,' + (b'"delta":{' if form.is_chat else b"")
        self._after = b'}],"usage":null}\n\n' if form.includes_usage else b"}]}\n\n"

    @property
    def is_complete(self) -> bool:
        """Whether all tokens were written."""
        return self.num_sent >= self.num_tokens

    def next_event(self) -> bytes:
        """Return the HTTP chunk of the next token; the last one is followed by the end of the body."""
        position, form = self.num_sent, self.form
        self.num_sent += 1
        text = WORDS[position % len(WORDS)]
        if form.is_chat:
            role = b'"role":"assistant",' if position == 0 else b""
            content = b'%s"content":"%s"}' % (role, text)
        else:
            content = b'"text":"%s"' % text
        ids = b',"token_ids":[%d],"position":%d' % (token_id(position), position) if form.returns_token_ids else b""
        reason = b'"length"' if self.is_complete else b"null"
        event = b'data: %s%s,"logprobs":null,"finish_reason":%s%s%s' % (
            self._before, content, reason, ids, self._after,
        )  # fmt: skip
        chunk = http_chunk(event)
        return chunk + self._end_of_stream() if self.is_complete else chunk

    def progress_body(self) -> bytes:
        """Return the whole chunked body of progress events and the response."""
        progress = [
            http_chunk(b'event: progress\ndata: {"index":0,"token_ids":[%d],"position":%d}\n\n' % (token_id(at), at))
            for at in range(self.num_tokens)
        ]
        return b"".join([*progress, http_chunk(b"event: response\ndata: %s\n\n" % self.whole_body()), LAST_CHUNK])

    def whole_body(self) -> bytes:
        """Return the JSON of a response that is not streamed."""
        text = b"".join(WORDS[at % len(WORDS)] for at in range(self.num_tokens)).decode()
        content = {"message": {"role": "assistant", "content": text}} if self.form.is_chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": "length"}
        members = orjson.dumps({"choices": [choice], "usage": self._usage()})[1:]
        return self._encode_envelope("") + b"," + members

    def _end_of_stream(self) -> bytes:
        usage = b""
        if self.form.includes_usage:
            usage = http_chunk(b'data: %s,"choices":[],"usage":%s}\n\n' % (self._envelope, orjson.dumps(self._usage())))
        return usage + http_chunk(DONE) + LAST_CHUNK

    def _usage(self) -> dict[str, Any]:
        num_tokens = self.num_tokens
        return {
            "prompt_tokens": PROMPT_TOKENS, "completion_tokens": num_tokens, "total_tokens": PROMPT_TOKENS + num_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        }  # fmt: skip

    def _encode_envelope(self, suffix: str) -> bytes:
        """Return the members before the choices, without the closing brace."""
        kind = ("chat.completion" if self.form.is_chat else "text_completion") + suffix
        members = {
            "id": self._id, "object": kind, "created": int(time.time()), "model": MODEL,
            "system_fingerprint": FINGERPRINT,
        }  # fmt: skip
        return orjson.dumps(members)[:-1]


def token_id(position: int) -> int:
    """Return the id of the output's token at a position."""
    return 1000 + position * 7 % 30_000


def http_chunk(data: bytes) -> bytes:
    """Return a chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def load_report(instance_id: str, num_running: int) -> dict[str, Any]:
    """Return the body of /load."""
    return {
        "state": "ready", "waiting_requests": 0, "waiting_tokens": 0, "running_requests": num_running,
        "total_blocks": 65_536, "free_blocks": 65_536 - 10 * num_running, "steps": 0, "prompt_tokens": 0,
        "cached_tokens": 0, "output_tokens": 0, "finished_requests": 0, "preemptions": 0, "step_age_seconds": 0.0,
        "admission_waiting_requests": 0, "admission_waiting_tokens": 0, "expected_wait_seconds": 0.0,
        "instance_id": instance_id, "fingerprint": WEIGHTS_FINGERPRINT, "version": VERSION, "models": [MODEL],
        "adapters": [], "block_size": 16, "max_running_requests": 512, "prefill_tokens_per_second": 0.0,
        "output_tokens_per_second": 0.0,
    }  # fmt: skip


def load_header(instance_id: str, num_running: int) -> str:
    """Return the line of the header with which a replica reports its load to a router."""
    return (
        f"x-chairlift-load: state=ready;running={num_running};waiting=0;waiting_tokens=0;wait_ms=0;kv=0.000;"
        f"instance={instance_id};fingerprint={WEIGHTS_FINGERPRINT}\r\n"
    )


def models() -> dict[str, Any]:
    """Return the body of /v1/models."""
    model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "chairlift", "max_model_len": 131_072}
    return {"object": "list", "data": [model]}
