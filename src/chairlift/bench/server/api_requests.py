"""Asking: the items of a workload become bodies of the OpenAI API, as token ids, as text or as a chat."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import orjson

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.server.http_client import Client
from chairlift.bench.workload.generators import endless
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.bench.workload.workload_trace import read_trace
from chairlift.core.errors import ConfigError
from chairlift.core.structured_output import StructuredOutput

WORDS = (
    "lift", "snow", "chair", "rope", "tower", "slope", "rider", "bench", "wind", "cable", "pine", "ridge", "cabin",
    "ski", "pass", "queue", "morning", "valley", "summit", "track", "boot", "glove", "cloud", "stone", "river", "bell",
    "ticket", "station", "engine", "brake", "wheel", "signal",
)  # fmt: skip
"""What stands for token ids in a text; most tokenizers have each as one token or two."""

IDS, TEXT, CHAT = "ids", "text", "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFormat:
    """How it is asked.

    Attributes:
        model: the server's name for it.
        prompts: IDS and TEXT go to /v1/completions, CHAT to /v1/chat/completions.
        plain: only fields of OpenAI's own: no ignore_eos, no ids of the output.
        ignore_eos: outputs are as long as the workload says.
        timeout_ms: the header x-request-timeout-ms of requests that have no timeout of their own; None for none.
    """

    model: str
    prompts: str = IDS
    plain: bool = False
    ignore_eos: bool = True
    timeout_ms: int | None = None

    @property
    def path(self) -> str:
        """Where it goes."""
        return "/v1/chat/completions" if self.prompts == CHAT else "/v1/completions"

    def body(self, item: WorkloadRequest) -> bytes:
        """Return what a request asks."""
        asked: dict[str, Any] = {"model": self.model, **self._prompt(item.prompt_token_ids)}
        asked |= {"max_tokens": item.output_tokens, "temperature": 0}
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        if item.tenant:
            asked["user"] = item.tenant
        if not self.plain:
            asked |= {"ignore_eos": self.ignore_eos, "return_token_ids": True}
            if item.priority:
                asked["priority"] = item.priority
        if item.structured is not None:
            asked |= self._structure(item.structured)
        return orjson.dumps(asked)

    def headers(self, item: WorkloadRequest) -> str:
        """Return the header lines that only this request has."""
        limit = self.timeout_ms if item.timeout is None else max(1, round(item.timeout * 1000))
        return "" if limit is None else f"x-request-timeout-ms: {limit}\r\n"

    def is_exact(self, item: WorkloadRequest) -> bool:
        """Whether its output is as long as the workload says."""
        return self.ignore_eos and not self.plain and item.structured is None

    def _prompt(self, token_ids: tuple[int, ...]) -> dict[str, Any]:
        if self.prompts == IDS:
            return {"prompt": token_ids}
        text = " ".join(WORDS[token % len(WORDS)] for token in token_ids)
        return {"prompt": text} if self.prompts == TEXT else {"messages": [{"role": "user", "content": text}]}

    def _structure(self, wanted: StructuredOutput) -> dict[str, Any]:
        """Raises ConfigError for one that OpenAI's own fields cannot ask for, where only those may be sent."""
        if wanted.json_object:
            return {"response_format": {"type": "json_object"}}
        if wanted.json_schema is not None:
            schema = orjson.loads(str(wanted.json_schema))
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "asked", "schema": schema}}}
        if self.plain:
            said = "the workload asks for a choice, a regex or a grammar, which OpenAI's API has not: leave --plain out"
            raise ConfigError(said, option="plain")
        if wanted.choice:
            return {"choice": list(wanted.choice)}
        return {"regex": wanted.regex} if wanted.regex is not None else {"grammar": wanted.grammar}


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request, ready to be sent.

    Attributes:
        at: seconds after the phase's beginning, as a trace says; 0 where nobody says.
        request: its bytes.
        asked_tokens: of output; 0 where it may end earlier.
    """

    at: float
    request: bytes
    asked_tokens: int


class RequestStream:
    """Shots of a workload in its order: those of a generator never end, a trace begins again.

    One deck serves all phases, so that no phase finds its prompts in a cache where an earlier one left them.
    """

    def __init__(self, spec: WorkloadSpec, vocab_size: int, style: RequestFormat, client: Client) -> None:
        """Begin. Raises ConfigError and InvalidRequest for a workload that cannot be."""
        self.size: int | None = None
        self._style = style
        self._client = client
        if spec.is_trace:
            trace = read_trace(spec.name, vocab_size=vocab_size, seed=spec.seed, count=spec.requests)
            self.size = len(trace.items)
            for item in trace.items:
                style.body(item)  # which cannot be asked for is said now, and not in the middle
            self._items: Iterator[WorkloadRequest] = cycle(trace.items)
        else:
            self._items = endless(spec.name, vocab_size=vocab_size, seed=spec.seed)

    def __iter__(self) -> Iterator[PreparedRequest]:
        return self

    def __next__(self) -> PreparedRequest:
        return self.shot(next(self._items))

    def shot(self, item: WorkloadRequest) -> PreparedRequest:
        """Make one of an item."""
        style = self._style
        request = self._client.request("POST", style.path, style.body(item), style.headers(item))
        return PreparedRequest(item.at, request, item.output_tokens if style.is_exact(item) else 0)
