"""PoolingRequest and read_*: parse a JSON body of /v1/embeddings, /v1/score or /v1/rerank, or raise InvalidRequest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.item_errors import item_in_errors
from chairlift.core.request import POOLING_TYPES
from chairlift.core.sampling_params import MAX_TOKENS, SamplingParams
from chairlift.core.validation import boolean, integer, invalid_param
from chairlift.llm.embedding_and_score_outputs import EmbeddingOptions, check_pairs
from chairlift.llm.text_service import Prompt
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.request_fields import EMBEDDING, EMBEDDING_FORMATS, MAX_INPUTS, RERANK, SCORE
from chairlift.server.openai.base_request import BaseRequest, base_fields

PARAMS = SamplingParams(max_tokens=1, temperature=0.0, seed=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest(BaseRequest):
    """The fields that the routes of pooled hidden states share.

    Attributes:
        prompts: the texts or token ids, in the order in which they are computed.
        pooling: one of POOLING_TYPES; None for the model's own.
    """

    prompts: tuple[Prompt, ...]
    pooling: str | None

    @property
    def texts_field(self) -> str:
        """The field with most of the texts."""
        return "input"

    def place(self, number: int) -> tuple[str, int, int]:
        """Return the field of a prompt, its index in that field, and the number of prompts of the field."""
        return self.texts_field, number, len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest(PoolingRequest):
    """A request to /v1/embeddings.

    Attributes:
        options: how pooled states become embeddings.
        is_base64: whether embeddings are base64 of float32 bytes, lowest byte first.
    """

    options: EmbeddingOptions
    is_base64: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest(PoolingRequest):
    """A request to /v1/score: the first `num_first` prompts are compared with the others."""

    num_first: int

    @property
    def texts_field(self) -> str:
        """See PoolingRequest."""
        return "text_2"

    def place(self, number: int) -> tuple[str, int, int]:
        """See PoolingRequest."""
        if number < self.num_first:
            return "text_1", number, self.num_first
        return "text_2", number - self.num_first, len(self.prompts) - self.num_first


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest(PoolingRequest):
    """A request to /v1/rerank: the first prompt is the query, the others are the documents.

    Attributes:
        top_n: how many results the response has; None for all.
        returns_documents: whether results have their texts.
    """

    top_n: int | None
    returns_documents: bool

    @property
    def texts_field(self) -> str:
        """See PoolingRequest."""
        return "documents"

    def place(self, number: int) -> tuple[str, int, int]:
        """See PoolingRequest."""
        return ("documents", number - 1, len(self.prompts) - 1) if number else ("query", 0, 1)


def read_embedding(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Parse a body of /v1/embeddings. Raises InvalidRequest."""
    fields, ignored = split_fields(body, EMBEDDING)
    dimensions = fields.get("dimensions")
    if dimensions is not None:
        dimensions = integer("dimensions", dimensions, 1, MAX_TOKENS)
    options = EmbeddingOptions(
        dimensions=dimensions, normalize=boolean("normalize", fields.get("normalize", True))
    )  # fmt: skip
    is_base64 = _one_of("encoding_format", fields.get("encoding_format", "float"), EMBEDDING_FORMATS) == "base64"
    return EmbeddingRequest(
        **_common(fields, ignored), prompts=_inputs(fields["input"]), options=options, is_base64=is_base64
    )


def read_score(body: Mapping[str, Any]) -> ScoreRequest:
    """Parse a body of /v1/score. Raises InvalidRequest."""
    fields, ignored = split_fields(body, SCORE)
    first, others = (_texts(name, fields[name]) for name in ("text_1", "text_2"))
    check_pairs(len(first), len(others))
    return ScoreRequest(**_common(fields, ignored), prompts=(*first, *others), num_first=len(first))


def read_rerank(body: Mapping[str, Any]) -> RerankRequest:
    """Parse a body of /v1/rerank. Raises InvalidRequest."""
    fields, ignored = split_fields(body, RERANK)
    query, documents = fields["query"], fields["documents"]
    if not isinstance(query, str) or not query:
        raise invalid_param("query", f"must be a text of at least one character, got {format_short(query)}")
    if not isinstance(documents, list):
        raise invalid_param("documents", f"must be a list of texts, got {type(documents).__name__}")
    texts = [each["text"] if isinstance(each, dict) and "text" in each else each for each in documents]
    top_n = fields.get("top_n")
    if top_n is not None:
        top_n = integer("top_n", top_n, 0, MAX_TOKENS) or None
    return RerankRequest(
        **_common(fields, ignored), prompts=(query, *_texts("documents", texts)), top_n=top_n,
        returns_documents=boolean("return_documents", fields.get("return_documents", True)),
    )  # fmt: skip


def _common(fields: Mapping[str, Any], ignored: tuple[str, ...]) -> dict[str, Any]:
    pooling = fields.get("pooling")
    if pooling is not None:
        pooling = _one_of("pooling", pooling, POOLING_TYPES)
    return {
        **base_fields(fields), "params": PARAMS, "stream": False, "include_usage": False,
        "has_continuous_usage": False, "return_token_ids": False,
        "resume": (), "resume_fingerprint": "", "structured_field": "", "ignored": ignored, "pooling": pooling,
    }  # fmt: skip


def _one_of(name: str, value: Any, values: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in values:
        raise invalid_param(name, f"must be {' or '.join(values)}, got {format_short(value)}")
    return value


def _inputs(value: Any) -> tuple[Prompt, ...]:
    """Return the texts or token ids of the field `input`: one, or a list of them."""
    if not isinstance(value, list) or not value or isinstance(value[0], str):
        return _texts("input", value)
    many = [value] if isinstance(value[0], int | float) else value
    _check_count("input", len(many))
    made = []
    for index, tokens in enumerate(many):
        with item_in_errors("input", index, len(many), ("input",)):
            made.append(_ids(tokens))
    return tuple(made)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one text or a list of them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise invalid_param(name, f"must be a text or a list of at least one, got {format_short(value)}")
    _check_count(name, len(texts))
    for index, text in enumerate(texts):
        with item_in_errors(name, index, len(texts), (name,)):
            if not isinstance(text, str):
                raise invalid_param(name, f"must have only texts, got {format_short(text)}")
            if not text:
                raise invalid_param(name, "must not contain an empty text")
    return tuple(texts)


def _check_count(name: str, count: int) -> None:
    if count > MAX_INPUTS:
        raise invalid_param(name, f"has {count} entries, the limit is {MAX_INPUTS}")


def _ids(tokens: Any) -> tuple[int, ...]:
    if not isinstance(tokens, list) or not tokens:
        raise invalid_param(
            "input", f"must be text or token ids, or a list of either, got {format_short(tokens)} in it"
        )
    for token in tokens:
        if type(token) is not int or not 0 <= token <= MAX_TOKENS:
            raise invalid_param("input", f"must contain only token ids, got {format_short(token)}")
    return tuple(tokens)
