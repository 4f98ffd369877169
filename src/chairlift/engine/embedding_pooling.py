"""PooledStates: adds up the hidden states of one prompt as its steps are confirmed, and makes an embedding of them."""

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ForwardFailed, NonFiniteLogits
from chairlift.engine.step_result import HiddenStates


class PooledStates:
    """The confirmed hidden states of a prompt: of its last token, or the sum over all of its tokens.

    A step that fails adds nothing, so a prompt whose chunks are computed again has no state twice.
    """

    __slots__ = ("_is_mean", "_num_tokens", "_total")

    def __init__(self, pooling: str) -> None:
        """Start without states; `pooling` is one of POOLING_TYPES."""
        self._is_mean = pooling == "mean"
        self.clear()

    def clear(self) -> None:
        """Forget all states: the prompt is computed again."""
        self._num_tokens = 0
        self._total: NDArray[np.float64] | None = None

    def add(self, states: HiddenStates | None, num_tokens: int) -> None:
        """Add the states [H] that a step returned for num_tokens tokens of the prompt; None for none."""
        if states is None:
            return
        self._total = states.astype(np.float64) if self._total is None else self._total + states
        self._num_tokens += num_tokens

    def embedding(self) -> bytes:
        """Return the embedding [H] as float32 bytes. Raises NonFiniteLogits, and ForwardFailed without states."""
        if self._total is None:
            raise ForwardFailed("the runner has computed the prompt without its hidden states")
        mean = self._total / self._num_tokens if self._is_mean else self._total
        with np.errstate(over="ignore"):
            embedding = mean.astype(np.float32)
        if not np.isfinite(embedding).all():
            raise NonFiniteLogits("the model's hidden states for this request are not finite")
        return embedding.tobytes()
