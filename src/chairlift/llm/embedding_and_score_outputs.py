"""EmbeddingOutput and ScoreOutput: embeddings of texts, and how similar two texts are by their embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from chairlift.core.engine_output import Usage
from chairlift.core.errors import ChairliftError, InvalidRequest
from chairlift.core.validation import integer
from chairlift.llm.outputs import RequestOutput

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The embedding of one prompt.

    Attributes:
        request_id: id of the request.
        prompt: the prompt's text; None when the prompt came as ids.
        prompt_token_ids: the prompt's token ids.
        embedding: the numbers; empty for a request that failed.
        usage: token counts.
        error: the error of a failed request, else None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    embedding: list[float]
    usage: Usage
    error: ChairliftError | None = None

    @property
    def outputs(self) -> Self:
        """The output itself, where vLLM's outputs have their result."""
        return self


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """The similarity of two texts.

    Attributes:
        score: cosine of the angle between the embeddings, -1 to 1; 0 if one of them failed.
        usage: token counts of both texts together.
        error: the error of a failed request, else None.
    """

    score: float
    usage: Usage
    error: ChairliftError | None = None

    @property
    def outputs(self) -> Self:
        """The output itself, where vLLM's outputs have their result."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """How the pooled hidden states of a prompt become its embedding.

    Attributes:
        dimensions: how many numbers to keep, the first ones; None for all.
        normalize: whether to scale it to a Euclidean length of 1, after `dimensions`.
    """

    dimensions: int | None = None
    normalize: bool = True

    def check(self, hidden_size: int) -> None:
        """Raise InvalidRequest for more dimensions than the model's states have."""
        if self.dimensions is not None:
            integer("dimensions", self.dimensions, 1, max(1, hidden_size))

    def finish(self, pooled: bytes) -> Vector:
        """Make the embedding, float32 [dimensions], of pooled hidden states as an engine returns them."""
        vector: Vector = np.frombuffer(pooled, np.float32)[: self.dimensions]
        return normalized(vector) if self.normalize else vector

    def output(self, result: RequestOutput) -> EmbeddingOutput:
        """Return the embedding of a finished request."""
        embedding: list[float] = self.finish(result.embedding).tolist() if result.embedding else []
        return EmbeddingOutput(
            result.request_id, result.prompt, result.prompt_token_ids, embedding, result.usage, result.error
        )


def normalized(vector: Vector) -> Vector:
    """Scale a vector to a Euclidean length of 1; one of zeros stays as it is."""
    numbers = vector.astype(np.float64)
    length = float(np.linalg.norm(numbers))
    return (numbers / length).astype(np.float32) if length else vector


def score(first: RequestOutput, second: RequestOutput) -> ScoreOutput:
    """Return the similarity of two texts from their pooled hidden states."""
    tokens, cached = zip(
        *((each.usage.prompt_tokens, each.usage.cached_tokens) for each in (first, second)), strict=True
    )
    usage, error = Usage(sum(tokens), 0, sum(cached)), first.error or second.error
    if error is not None:
        return ScoreOutput(0.0, usage, error)
    one, other = (normalized(np.frombuffer(each.embedding, np.float32)) for each in (first, second))
    return ScoreOutput(float(one.astype(np.float64) @ other.astype(np.float64)), usage)


def check_pairs(num_first: int, num_second: int) -> None:
    """Raise InvalidRequest unless there is one first text, or one for each second text."""
    if num_first not in (1, num_second):
        raise InvalidRequest(
            f"one text is compared with all others, or each with one other: got {num_first} and {num_second} texts",
            param="text_1",
        )


def score_pairs(first: Sequence[RequestOutput], second: Sequence[RequestOutput]) -> list[ScoreOutput]:
    """Score each of the second texts: against the text of the same place in `first`, or against its only one."""
    firsts = list(first) * len(second) if len(first) == 1 else first
    return [score(one, other) for one, other in zip(firsts, second, strict=True)]
