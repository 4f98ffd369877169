"""prepare_embeddings: the requests for embeddings of several prompts; errors say which prompt."""

from collections.abc import Mapping, Sequence
from typing import Unpack

from chairlift.core.item_errors import item_in_errors
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_service import PROMPT_FIELDS, Prompt, RequestOptions, TextService


def prepare_embeddings(
    service: TextService, prompts: Mapping[str, Sequence[Prompt]], pooling: str | None,
    **options: Unpack[RequestOptions],
) -> list[OutputProcessor]:  # fmt: skip
    """Create the requests for embeddings of lists of prompts, in order.

    Args:
        service: what checks and tokenizes the prompts.
        prompts: lists of prompts, by the argument that each was.
        pooling: see TextService.prepare_embedding.
        options: see RequestOptions.

    Raises InvalidRequest, which says which prompt of which list cannot be served; nothing is queued.
    """
    processors = []
    for name, many in prompts.items():
        for index, prompt in enumerate(many):
            with item_in_errors(name, index, len(many), PROMPT_FIELDS):
                processors.append(service.prepare_embedding(prompt, pooling=pooling, **options))
    return processors
