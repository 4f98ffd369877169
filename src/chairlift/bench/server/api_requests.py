"""PreparedRequests: turns a workload into requests of the OpenAI API, with token ids, text or chat messages."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import orjson

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.server.http_client import Client
from chairlift.bench.workload.generators import endless
from chairlift.bench.workload.trace_reader import read_trace
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.core.errors import ConfigError
from chairlift.core.structured_output import StructuredOutput

WORDS = tuple(Path(__file__).with_name("prompt_words.txt").read_text(encoding="utf-8").split())
"""Words that stand for token ids in a text; most tokenizers have one or two tokens for each."""

IDS, TEXT, CHAT = "ids", "text", "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFormat:
    """The format of requests.

    Attributes:
        model: the model's name on the server.
        prompts: IDS and TEXT go to /v1/completions, CHAT to /v1/chat/completions.
        openai_fields_only: whether only OpenAI's own fields are sent: no ignore_eos, no output token ids.
        ignore_eos: whether outputs are as long as the workload says.
        request_timeout_ms: header x-request-timeout-ms of requests without a timeout of their own; None for no header.
    """

    model: str
    prompts: str = IDS
    openai_fields_only: bool = False
    ignore_eos: bool = True
    request_timeout_ms: int | None = None

    @property
    def path(self) -> str:
        """The path of the endpoint."""
        return "/v1/chat/completions" if self.prompts == CHAT else "/v1/completions"

    def body(self, item: WorkloadRequest) -> bytes:
        """Return the JSON body of a request."""
        fields: dict[str, Any] = {"model": self.model, **self._prompt(item.prompt_token_ids)}
        fields |= {"max_tokens": item.output_tokens, "temperature": 0}
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if item.tenant:
            fields["user"] = item.tenant
        if not self.openai_fields_only:
            fields |= {"ignore_eos": self.ignore_eos, "return_token_ids": True}
            if item.priority:
                fields["priority"] = item.priority
        if item.structured is not None:
            fields |= self._structure(item.structured)
        return orjson.dumps(fields)

    def headers(self, item: WorkloadRequest) -> str:
        """Return the header lines that are specific to this request."""
        limit = self.request_timeout_ms if item.timeout is None else max(1, round(item.timeout * 1000))
        return "" if limit is None else f"x-request-timeout-ms: {limit}\r\n"

    def is_exact(self, item: WorkloadRequest) -> bool:
        """Return whether a request's output always has the length that the workload states."""
        return self.ignore_eos and not self.openai_fields_only and item.structured is None

    def _prompt(self, token_ids: tuple[int, ...]) -> dict[str, Any]:
        if self.prompts == IDS:
            return {"prompt": token_ids}
        text = " ".join(WORDS[token % len(WORDS)] for token in token_ids)
        return {"prompt": text} if self.prompts == TEXT else {"messages": [{"role": "user", "content": text}]}

    def _structure(self, structured: StructuredOutput) -> dict[str, Any]:
        """Return the fields of a structured output.

        Raises ConfigError for one that OpenAI's own fields cannot express when only those may be sent.
        """
        if structured.json_object:
            return {"response_format": {"type": "json_object"}}
        if structured.json_schema is not None:
            schema = orjson.loads(str(structured.json_schema))
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "asked", "schema": schema}}}
        if self.openai_fields_only:
            raise ConfigError(
                "the workload has a choice, a regex or a grammar, which OpenAI's API does not support: "
                "do not use --openai-fields-only",
                option="openai_fields_only",
            )
        if structured.choice:
            return {"choice": list(structured.choice)}
        return {"regex": structured.regex} if structured.regex is not None else {"grammar": structured.grammar}


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request that is ready to be sent.

    Attributes:
        at: seconds after the start of the phase, from a trace; 0 when the workload has no times.
        request: its bytes.
        requested_tokens: number of output tokens; 0 when the output may end earlier.
    """

    at: float
    request: bytes
    requested_tokens: int


class PreparedRequests:
    """The requests of a workload in order; a generator's never end, a trace is repeated.

    One stream serves all phases, so that no phase finds its prompts in the prefix cache from an earlier phase.
    """

    def __init__(self, spec: WorkloadSpec, vocab_size: int, request_format: RequestFormat, client: Client) -> None:
        """Open the workload.

        Raises ConfigError and InvalidRequest for an invalid workload.
        """
        self.size: int | None = None
        self._request_format = request_format
        self._client = client
        if spec.is_trace:
            trace = read_trace(spec.name, vocab_size=vocab_size, seed=spec.seed, count=spec.requests)
            self.size = len(trace.items)
            for item in trace.items:
                request_format.body(item)  # raises now, not during the run, for a request that cannot be expressed
            self._items: Iterator[WorkloadRequest] = cycle(trace.items)
        else:
            self._items = endless(spec.name, vocab_size=vocab_size, seed=spec.seed)

    def __iter__(self) -> Iterator[PreparedRequest]:
        return self

    def __next__(self) -> PreparedRequest:
        return self.prepare(next(self._items))

    def prepare(self, item: WorkloadRequest) -> PreparedRequest:
        """Prepare the request of one item."""
        request_format = self._request_format
        request = self._client.request(
            "POST", request_format.path, request_format.body(item), request_format.headers(item)
        )
        return PreparedRequest(item.at, request, item.output_tokens if request_format.is_exact(item) else 0)
