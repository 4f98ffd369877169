"""FakeConfig, expected_tokens, expected_embedding: what a fake runner computes, as pure functions."""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.runner.fake_states import State, advance_state, zero_state
from chairlift.engine.step_plan import Int32

HIDDEN_SIZE = 8
"""Length of the fake model's embeddings."""

_STRIDE = 40_503  # odd and large, so that neighbouring positions get very different tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeConfig:
    """The properties of a fake model.

    Attributes:
        vocab_size: upper bound of token ids (exclusive).
        max_model_len: maximum tokens of one sequence.
        num_blocks: KV cache blocks.
        block_size: tokens in a block.
        windows: attention window of each layer group, None for full attention; may be empty with has_state.
        has_state: whether other layers keep a state, on which every token depends, too (with verify).
        num_state_checkpoints: see RunnerInfo.
        seed: of all tokens.
        seconds_per_step: duration of a step, on the fake clock if there is one, otherwise in real time.
        seconds_per_token: added to the duration for each token of the step.
        poison: a step with this input id raises ValueError.
        nan: a row with this input id fails with NonFiniteLogits.
        busy_cpus: CPUs that the runner reports as busy.
        may_have_low_priority, max_cached_blocks: see RunnerInfo.
        verify: whether to write and read the KV cache. Without it a step costs almost nothing, and a token depends only
            on the prompt, the request's seed and the position.
    """

    vocab_size: int = 256
    max_model_len: int = 1024
    num_blocks: int = 256
    block_size: int = 16
    windows: tuple[int | None, ...] = (None,)
    has_state: bool = False
    num_state_checkpoints: int = 0
    seed: int = 0
    seconds_per_step: float = 0.0
    seconds_per_token: float = 0.0
    poison: int | None = None
    nan: int | None = None
    busy_cpus: tuple[int, ...] = ()
    may_have_low_priority: bool = True
    max_cached_blocks: int | None = None
    verify: bool = True


def next_token(
    context: Sequence[int], params: SamplingParams, config: FakeConfig, choice: int = 0,
    state: State | None = None, adapter: str = "",
) -> int:  # fmt: skip
    """Return the token after a context: a pure function of visible ids, seeds, choice index and adapter's digest.

    With has_state also of `state`, by default that of the context.
    """
    narrowest = min((window for window in config.windows if window is not None), default=None)
    visible = _visible(context, config)
    near = visible[-narrowest:] if narrowest else visible[:0]
    seed = 0 if params.greedy else params.seed
    salt = f"{config.seed} {seed} {0 if params.greedy else choice} {len(context)}{adapter}".encode()
    if config.has_state:
        salt += f" {advance_state(zero_state(adapter), context) if state is None else state}".encode()
    return zlib.crc32(near.tobytes(), zlib.crc32(visible.tobytes(), zlib.crc32(salt))) % config.vocab_size


def _visible(context: Sequence[int], config: FakeConfig) -> NDArray[np.int64]:
    """Return the ids that the last token of a context sees: those of the widest window."""
    all_windowed = all(window is not None for window in config.windows)
    widest = max([window or 0 for window in config.windows], default=0) if all_windowed else len(context)
    return np.asarray(context[-widest:] if widest else context[:0], np.int64)


def masked_token(token: int, bits: Int32, vocab_size: int) -> int | None:
    """Return the allowed token that replaces a sampled one; None if the mask allows no token."""
    allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab_size])
    return int(allowed[token % len(allowed)]) if len(allowed) else None


def expected_tokens(
    prompt: Sequence[int], params: SamplingParams, config: FakeConfig, eos_token_ids: Sequence[int] = (),
    choice: int = 0, adapter: str = "",
) -> list[int]:  # fmt: skip
    """Compute the whole output of a request, without a KV cache and without batching."""
    assert params.max_tokens is not None
    context, stops = list(prompt), {*eos_token_ids, *params.stop_token_ids}
    state = zero_state(adapter)
    while len(context) - len(prompt) < params.max_tokens:
        state = advance_state(state, context[state[0] :])
        context.append(next_token(context, params, config, choice, state, adapter))
        if context[-1] in stops:
            break
    return context[len(prompt) :]


def hidden_state(context: Sequence[int], config: FakeConfig, adapter: str = "") -> NDArray[np.float64]:
    """Return the hidden state [HIDDEN_SIZE] of the last token of a context: a pure function of its ids."""
    ids = _visible(context, config).tobytes()
    salts = (f"{config.seed} {len(context)} {place}{adapter}".encode() for place in range(HIDDEN_SIZE))
    numbers = [zlib.crc32(ids, zlib.crc32(salt)) for salt in salts]
    return np.array(numbers) / 2.0**31 - 1.0


def expected_embedding(prompt: Sequence[int], pooling: str, config: FakeConfig, adapter: str = "") -> list[float]:
    """Compute the embedding of a prompt, without a KV cache and without batching."""
    if pooling == "last":
        return _float32_list(hidden_state(prompt, config, adapter))
    states = [hidden_state(prompt[: place + 1], config, adapter) for place in range(len(prompt))]
    return _float32_list(np.mean(states, axis=0))


def _float32_list(states: NDArray[np.float64]) -> list[float]:
    numbers: list[float] = states.astype(np.float32).tolist()
    return numbers


def unverified_token(
    prompt: Sequence[int], params: SamplingParams, position: int, config: FakeConfig, adapter: str = ""
) -> int:
    """Return the token at a position, counted from the prompt's start, of a fake with verify=False."""
    return (_salt(prompt, params, adapter) + position * _STRIDE) % config.vocab_size


def _salt(prompt: Sequence[int], params: SamplingParams, adapter: str = "") -> int:
    seed = 0 if params.greedy else (params.seed or 0) % 2**32
    return zlib.crc32(array("q", prompt).tobytes(), zlib.crc32(adapter.encode(), seed))
