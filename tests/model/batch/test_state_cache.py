"""StateCache: shapes and dtypes, copies between slots and checkpoints."""

import numpy as np
import torch

from chairlift.engine.step_plan import StepPlan
from chairlift.model.batch.state_cache import StateCache, state_dtype
from chairlift.model.config.state_layers import StateShape

CPU = torch.device("cpu")
SHAPES = [StateShape((3, 16), (2, 4, 8)), StateShape((2, 16))]
CHUNKED = StateShape((3, 16), (2, 4, 8), 1, chunk_tokens=5)


def numbered() -> StateCache:
    """Return a cache whose entry i holds i everywhere."""
    cache = StateCache(SHAPES, 3, 2, torch.float32, CPU)
    for layer in cache.layers:
        for tensor in layer.tensors():
            tensor.add_(torch.arange(5).view(-1, *[1] * (tensor.ndim - 1)))
    return cache


def values(cache: StateCache) -> list[list[float]]:
    """Return, for each tensor, the value of each entry, which must be the same everywhere in it."""
    found = []
    for layer in cache.layers:
        for tensor in layer.tensors():
            flat = tensor.flatten(1)
            assert (flat == flat[:, :1]).all()
            found.append(flat[:, 0].tolist())
    return found


def test_states_are_zeros_of_float32_or_float64() -> None:
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        cache = StateCache(SHAPES, 3, 2, dtype, CPU)
        first, second = cache.layers
        assert first.recurrent is not None and second.recurrent is None
        assert (first.convolution.shape, first.recurrent.shape) == ((5, 3, 16), (5, 2, 4, 8))
        assert {tensor.dtype for layer in cache.layers for tensor in layer.tensors()} == {wide} == {state_dtype(dtype)}
        assert cache.num_bytes == 5 * sum(shape.num_bytes(wide.itemsize) for shape in SHAPES)
        assert values(cache) == [[0.0] * 5] * 3


def test_loads_copy_the_states_as_they_were_before() -> None:
    cache = numbered()
    cache.load(np.array([[3, 0], [4, 3], [0, 1]], np.int32))
    assert values(cache) == [[3.0, 0.0, 2.0, 4.0, 4.0]] * 3
    cache.load(np.empty((0, 2), np.int32))
    assert values(cache) == [[3.0, 0.0, 2.0, 4.0, 4.0]] * 3


def test_slots_have_partial_chunks_where_the_recurrence_goes_by_chunks() -> None:
    cache = StateCache([CHUNKED, SHAPES[1]], 3, 2, torch.bfloat16, CPU)
    first, second = cache.layers
    partial = first.partial_chunk
    assert partial is not None and second.partial_chunk is None
    tensors = (partial.key, partial.update, partial.decay)
    assert [tuple(each.shape) for each in tensors] == [(3, 5, 1, 4), (3, 5, 2, 8), (3, 5, 2)]
    assert {each.dtype for each in tensors} == {torch.float32}
    states = 5 * (CHUNKED.num_bytes(4) + SHAPES[1].num_bytes(4))
    assert cache.num_bytes == states + 3 * CHUNKED.partial_chunk_bytes(4)


def test_the_rows_of_a_plan_are_entries_of_the_cache() -> None:
    cache = numbered()
    plan = StepPlan(
        step_id=0, released_slots=(), new_sequences=(), slots=np.array([2, 0], np.int32),
        num_new_tokens=np.array([1, 4], np.int32), start_positions=np.array([9, 0], np.int32),
        new_blocks=np.empty((0, 4), np.int32), input_ids=np.zeros(5, np.int32), sample_rows=np.array([0], np.int32),
        state_loads=np.array([[1, 2]], np.int32), state_saves=np.array([[1, 4, 0]], np.int32),
    )  # fmt: skip
    step = cache.step(plan)
    assert (step.slots.tolist(), step.counts, step.starts.tolist()) == ([2, 0], (1, 4), [9, 0])
    assert (step.loads.tolist(), step.saves.tolist()) == ([[4, 2]], [[1, 4, 3]])
