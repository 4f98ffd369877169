"""PoolingRoute: serves /v1/embeddings, /v1/score and /v1/rerank."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.item_errors import item_in_errors
from chairlift.core.validation import invalid_param
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_service import PROMPT_FIELDS
from chairlift.protocol.request_fields import POOLING_ROUTES
from chairlift.server.openai.generation_handler import RequestContext, handle_generation
from chairlift.server.openai.response_renderers import Renderer, ResponseMeta
from chairlift.server.pooling.pooling_renderers import EmbeddingRenderer, RerankRenderer, ScoreRenderer
from chairlift.server.pooling.pooling_request import (
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    read_embedding,
    read_rerank,
    read_score,
)
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send

MAX_NUMBERS = 2**22
"""Numbers in the embeddings of one response: 40 MB of JSON."""

READERS: Mapping[str, Callable[[Mapping[str, Any]], PoolingRequest]] = dict(
    zip(POOLING_ROUTES, (read_embedding, read_score, read_rerank), strict=True)
)
"""Path of each route -> what parses its body."""


class PoolingRoute:
    """One of the routes of READERS."""

    def __init__(self, replica: Replica, path: str) -> None:
        self._replica, self._read = replica, READERS[path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute the pooled hidden states of all texts, and respond."""
        await handle_generation(self._replica, scope, receive, send, self._read, _PoolingHandler)


@dataclass(frozen=True, slots=True)
class _PoolingHandler:
    """Prepares and renders one request; see EndpointHandler."""

    context: RequestContext[PoolingRequest]

    @property
    def is_quick(self) -> bool:
        return len(self.context.request.prompts) == 1

    def processors(self) -> list[OutputProcessor]:
        request, service = self.context.request, self.context.replica.service
        if len(request.prompts) > service.max_queue_size:
            raise invalid_param(
                request.texts_field,
                f"has {len(request.prompts)} texts, the engine's queue has room for {service.max_queue_size}",
            )
        if isinstance(request, EmbeddingRequest):
            self._check_size(request, service.client.limits.hidden_size)
        return [self._processor(number) for number in range(len(request.prompts))]

    def _processor(self, number: int) -> OutputProcessor:
        """Prepare one of the prompts; an error names the field and the place in it where the client sent it."""
        request, service = self.context.request, self.context.replica.service
        field, index, count = request.place(number)
        try:
            with item_in_errors(field, index, count, PROMPT_FIELDS):
                return service.prepare_embedding(
                    request.prompts[number], pooling=request.pooling, **self.context.engine_options()
                )
        except InvalidRequest as error:
            if error.details.get("param") == "prompt":
                error.details["param"] = field
            raise

    def _check_size(self, request: EmbeddingRequest, hidden_size: int) -> None:
        request.options.check(hidden_size)
        count = len(request.prompts) * (request.options.dimensions or hidden_size)
        if count > MAX_NUMBERS:
            raise invalid_param(
                "input",
                f"has {len(request.prompts)} texts, whose embeddings have {count} numbers together, the limit is "
                f"{MAX_NUMBERS}; send fewer texts in one request",
            )  # fmt: skip

    def renderer(self, processors: Sequence[OutputProcessor]) -> Renderer:
        request = self.context.request
        if isinstance(request, ScoreRequest):
            return ScoreRenderer(request, ResponseMeta.of("score", self.context.request_id, request.model))
        if isinstance(request, RerankRequest):
            return RerankRenderer(request, ResponseMeta.of("rerank", self.context.request_id, request.model))
        assert isinstance(request, EmbeddingRequest)
        return EmbeddingRenderer(request)
