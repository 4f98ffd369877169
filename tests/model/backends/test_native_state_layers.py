"""Layers with a state on the native kernels: equal to torch's, and the same bits however a prompt is cut."""

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.backends.native_state_layers import (
    NativeStates,
    StateBuffers,
    add_state_layer,
    dense_state,
    obstacle,
)
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.state_layers import GatedDeltaNetConfig, Mamba2Config, ShortConvConfig
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.packing import PackedWeight, Packer
from chairlift.model.layers.linear_and_rms_norm import Linear
from support_native import Operations, add_linear, instruction_sets
from support_shares import each_value, for_each
from support_state_layers import (
    CONFIGS,
    HIDDEN,
    Chunk,
    StateLayer,
    entry_states,
    have_same_bits,
    make_cache,
    make_step,
    random_inputs,
    random_layer,
    run_chunks,
    run_step,
    torch_run,
)

F32 = torch.float32
MAX_TOKENS = 200


@dataclass
class NativeLayer:
    """One layer as a decoder of the library, over float32 rows.

    Attributes:
        rounds: whether the input of the output projection is bfloat16.
        table: embeddings [V, H] that a plan's ids are looked up in; None for a layer that takes rows.
    """

    layer: StateLayer
    instruction_set: str
    threads: int = 2
    rounds: bool = False
    table: Tensor | None = None
    on: Operations = field(init=False)

    def __post_init__(self) -> None:
        self.on = on = Operations(self.instruction_set, self.threads)
        config = self.layer.config
        self._x = on.buffer(library.F32, HIDDEN)
        if self.table is not None:
            on.native.add_embed(
                on.handle, on.keep(self.table), library.FLOAT32, None, HIDDEN, ctypes.c_float(1.0), self._x
            )
        packed = self._packed(self.layer.projection, library.FLOAT32)
        projected = on.buffer(library.F32, packed.shape[0])
        self._add_linear(self.layer.projection, packed, self._x, projected)
        kind = library.BFLOAT16 if self.rounds else library.FLOAT32
        packed = self._packed(self.layer.output, kind)
        out = on.buffer(library.BF16 if self.rounds else library.F32, packed.shape[1])
        buffers = StateBuffers.add(on.handle, [config])
        add_state_layer(on.handle, self.layer, 0, projected, buffers, out, self._keep)
        self._y = on.buffer(library.F32, HIDDEN)
        self._add_linear(self.layer.output, packed, out, self._y)
        assert on.native.reserve(on.handle, MAX_TOKENS) == 0

    def __call__(self, chunks: Sequence[Chunk], cache: StateCache, step: StateStep, padding: int = 0) -> Tensor:
        """See support_state_layers.Run."""
        x = torch.cat([chunk.x for chunk in chunks])
        assert len(x) + padding <= MAX_TOKENS
        self.on.rows(self._x, len(x), F32)[:, :HIDDEN] = x
        outputs = self.on.rows(self._y, len(x) + padding, F32)
        outputs.fill_(torch.nan)
        cu_q = torch.tensor([0, *step.counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        lengths = torch.tensor([chunk.start + len(chunk.x) for chunk in chunks], dtype=torch.int32)
        native_step = kernel_structs.Step(
            num_tokens=len(x) + padding, num_seqs=len(chunks), cu_seqlens_q=cu_q.data_ptr(),
            seq_lens=lengths.data_ptr(),
        )  # fmt: skip
        states = NativeStates(cache)
        states.set_step(native_step, step)
        assert self.on.native.run(self.on.handle, ctypes.byref(native_step)) == 0
        return outputs[: len(x), :HIDDEN].clone()

    def run_plan(self, ids: Tensor, slots: list[int], counts: list[int], starts: list[int], cache: StateCache,
                 saves: Sequence[tuple[int, int, int]]) -> Tensor | int:  # fmt: skip
        """Run a plan without KV caches; saves are (row, number, checkpoint). Returns the outputs, or the error."""
        inputs = np.array([*slots, *counts, *starts, *ids.tolist()], np.int32)
        plan = kernel_structs.Plan(
            num_rows=len(slots), num_tokens=len(ids), packed_inputs=inputs.ctypes.data, num_slots=cache.num_slots,
            max_blocks=1000, block_size=1, vocab_size=1000,
        )  # fmt: skip
        states = NativeStates(cache)
        states.set_plan(plan, np.array(saves, np.int32).reshape(-1, 3))
        code: int = self.on.native.run_plan(self.on.handle, ctypes.byref(plan), self._y, None)
        return code or self.on.rows(self._y, len(ids), F32)[:, :HIDDEN].clone()

    def _packed(self, linear: Linear, kind: int) -> PackedWeight:
        assert isinstance(linear.weight, Tensor)
        packed, _ = Packer(self.on.pool, kind, F32).pack([linear.weight])
        self.on.tensors.append(packed)
        return packed

    def _add_linear(self, linear: Linear, packed: PackedWeight, source: int, target: int) -> None:
        bias = None
        if linear.bias is not None:
            bias = self.on.keep(functional.pad(linear.bias, (0, packed.struct.panels * 64 - len(linear.bias))))
        add_linear(self.on, source, packed, target, bias=bias)

    def _keep(self, tensor: Tensor) -> int:
        return self.on.keep(tensor.float().contiguous())


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", instruction_sets())
def test_outputs_and_states_equal_torch_in_float64(name: str, config: str) -> None:
    """A prompt, a chunk behind it, and single tokens, with the parameters of the float32 layer."""
    layer = random_layer(CONFIGS[config], F32)
    wide = random_layer(CONFIGS[config], torch.float64)
    native, run = NativeLayer(layer, name), torch_run(wide)
    x = random_inputs(120, F32, seed=1)
    own, exact = make_cache(layer.config, F32), make_cache(layer.config, torch.float64)
    counts = (45, 70, 1, 1, 3)
    assert relative(run_chunks(native, own, x, counts), run_chunks(run, exact, x.double(), counts)) < 1e-5
    for found, expected in zip(entry_states(own.layers[0], 0), entry_states(exact.layers[0], 0), strict=True):
        assert relative(dense_state(found) if found.ndim == 3 else found, expected) < 1e-5
    assert all(tensor[1:].isnan().all() for tensor in own.layers[0].tensors()), "another entry was written"


@pytest.mark.parametrize("config", ["delta", "mamba2", "short"])
def test_an_input_of_bfloat16_is_rounded_once(config: str) -> None:
    layer = random_layer(CONFIGS[config], F32)
    x = random_inputs(40, F32, seed=2)
    found = run_chunks(NativeLayer(layer, instruction_sets()[0], rounds=True), make_cache(layer.config, F32), x, [40])
    exact = run_chunks(torch_run(layer), make_cache(layer.config, F32), x, [40])
    assert 1e-5 < relative(found, exact.double()) < 1e-2


@for_each(("name", "config"), each_value(instruction_sets(), list(CONFIGS)))
def test_a_prompt_cut_at_every_position_has_the_same_bits(name: str, config: str) -> None:
    layer = random_layer(CONFIGS[config], F32)
    native, x = NativeLayer(layer, name, threads=1), random_inputs(70, F32, seed=3)
    cache = make_cache(layer.config, F32)
    whole = run_chunks(native, cache, x, [len(x)])
    states = entry_states(cache.layers[0], 0)
    assert whole.isfinite().all()
    for counts in ([1] * len(x), [2, 3, 5, 7, 11, 13, 29], *([cut, len(x) - cut] for cut in range(1, len(x)))):
        cache = make_cache(layer.config, F32)
        assert torch.equal(run_chunks(native, cache, x, counts, slot=2), whole), counts
        assert have_same_bits(entry_states(cache.layers[0], 2), states), counts


@for_each(("name", "config"), each_value(instruction_sets(), list(CONFIGS)))
def test_going_on_from_every_checkpoint_has_the_same_bits(name: str, config: str) -> None:
    """All checkpoints are saved in one step on the way; none of them changes the run itself."""
    layer = random_layer(CONFIGS[config], F32)
    native, x = NativeLayer(layer, name, threads=1), random_inputs(40, F32, seed=4)
    plain = make_cache(layer.config, F32)
    whole = run_chunks(native, plain, x, [len(x)])
    cache = make_cache(layer.config, F32, num_checkpoints=41)
    at_32 = ((32, 40), (32, 31))  # two checkpoints of one place
    saves = tuple((count, count - 1) for count in range(1, 41)) + at_32[:1]
    (outputs,) = run_step(native, cache, [Chunk(1, 0, x, saves)])
    assert torch.equal(outputs, whole)
    states = entry_states(plain.layers[0], 0)
    assert have_same_bits(entry_states(cache.layers[0], 1), states)
    assert have_same_bits(entry_states(cache.layers[0], 4 + 39), states)
    assert have_same_bits(*(entry_states(cache.layers[0], 4 + checkpoint) for _, checkpoint in at_32))
    for count in range(1, 40):
        chunk = Chunk(3, count, x[count:])
        (outputs,) = run_step(native, cache, [chunk], loads=[(count - 1, 3)])
        assert torch.equal(outputs, whole[count:]), count
        assert have_same_bits(entry_states(cache.layers[0], 3), states), count


@for_each(("name", "config"), each_value(instruction_sets(), list(CONFIGS)))
def test_sequences_in_random_batches_have_the_bits_that_each_has_alone(name: str, config: str) -> None:
    """Slots are used again: a state never reaches the next sequence. Threads and padding tokens change nothing."""
    layer, rng = random_layer(CONFIGS[config], F32), random.Random(5)
    natives = [NativeLayer(layer, name, threads) for threads in (1, 2, 3)]
    inputs = [random_inputs(length, F32, seed=length) for length in (1, 2, 9, 33, 50, 64, 65)]
    alone = [run_chunks(natives[0], make_cache(layer.config, F32), x, [len(x)]) for x in inputs]
    cache = make_cache(layer.config, F32, num_slots=3)
    waiting, running, found = list(range(len(inputs))), {}, [[] for _ in inputs]
    while waiting or running:
        for slot in set(range(3)) - set(running):
            if waiting and rng.random() < 0.7:
                running[slot] = (waiting.pop(0), 0)
        rows = [slot for slot in running if rng.random() < 0.8]
        if not rows:
            continue
        counts = {slot: min(rng.choice((1, 1, 40)), len(inputs[running[slot][0]]) - running[slot][1]) for slot in rows}
        rows.sort(key=lambda slot: counts[slot] != 1)
        chunks = []
        for slot in rows:
            sequence, start = running[slot]
            saves = ((counts[slot], slot),) if rng.random() < 0.3 else ()
            chunks.append(Chunk(slot, start, inputs[sequence][start : start + counts[slot]], saves))
        step = make_step(chunks, num_slots=3)
        outputs = rng.choice(natives)(chunks, cache, step, padding=rng.choice((0, 2)))
        for slot, part in zip(rows, outputs.split([counts[slot] for slot in rows]), strict=True):
            sequence, start = running.pop(slot)
            found[sequence].append(part)
            if start + len(part) < len(inputs[sequence]):
                running[slot] = (sequence, start + len(part))
    for parts, expected in zip(found, alone, strict=True):
        assert torch.equal(torch.cat(parts), expected)


@for_each("config", list(CONFIGS))
def test_a_row_with_nan_leaves_the_other_rows_alone(config: str) -> None:
    layer = random_layer(CONFIGS[config], F32)
    native, cache, x = NativeLayer(layer, instruction_sets()[0]), make_cache(layer.config, F32), random_inputs(8, F32)
    bad = x.clone()
    bad[3] = torch.nan
    (alone,) = run_step(native, cache, [Chunk(0, 0, x)])
    first, second, third = run_step(native, cache, [Chunk(1, 0, x), Chunk(2, 0, bad), Chunk(3, 0, x)])
    assert torch.equal(first, alone) and torch.equal(third, alone)
    assert torch.equal(second[:3], alone[:3]) and second[3:].isnan().any()


@for_each("config", list(CONFIGS))
def test_a_plan_uses_the_states_of_its_slots_and_saves_them(config: str) -> None:
    table = random_inputs(30, F32, seed=7)
    native = NativeLayer(random_layer(CONFIGS[config], F32), instruction_sets()[0], table=table)
    rows = NativeLayer(native.layer, instruction_sets()[0])
    planned, stepped = (make_cache(native.layer.config, F32) for _ in range(2))
    ids = torch.arange(30)
    first = native.run_plan(ids[:12], [3, 1], [5, 7], [0, 0], planned, [(1, 6, 2)])
    second = native.run_plan(ids[12:], [1, 3], [1, 17], [7, 5], planned, [])
    assert isinstance(first, Tensor) and isinstance(second, Tensor)
    expected = run_step(rows, stepped, [Chunk(3, 0, table[:5]), Chunk(1, 0, table[5:12], ((6, 2),))])
    expected += run_step(rows, stepped, [Chunk(1, 7, table[12:13]), Chunk(3, 5, table[13:])])
    assert torch.equal(torch.cat((first, second)), torch.cat(expected))
    for entry in (1, 3, 6):
        assert have_same_bits(entry_states(planned.layers[0], entry), entry_states(stepped.layers[0], entry))


@pytest.mark.parametrize("save", [(2, 1, 0), (-1, 1, 0), (0, 0, 0), (0, 4, 0), (0, 1, 4), (0, 1, -5)])
def test_a_save_outside_of_a_plan_or_of_the_states_is_refused(save: tuple[int, int, int]) -> None:
    native = NativeLayer(
        random_layer(CONFIGS["short"], F32), instruction_sets()[0], table=random_inputs(9, F32)
    )  # fmt: skip
    cache = make_cache(native.layer.config, F32)
    invalid_plan = -3
    assert native.run_plan(torch.arange(6), [0, 1], [3, 3], [0, 0], cache, [(1, 3, 3), save]) == invalid_plan
    assert all(tensor.isnan().all() for tensor in cache.layers[0].tensors())


def test_padding_tokens_and_empty_rows_get_zeros() -> None:
    layer = random_layer(CONFIGS["mamba2"], F32)
    native = NativeLayer(layer, instruction_sets()[0])
    cache, x = make_cache(layer.config, F32), random_inputs(6, F32)
    chunks = [Chunk(0, 0, x[:5]), Chunk(1, -1, x[5:])]  # the second has a length of 0
    outputs = native(chunks, cache, make_step(chunks, num_slots=4), padding=3)
    assert outputs[:5].isfinite().all()
    assert native.layer.output.bias is None and (outputs[5:] == 0).all()
    assert all(tensor[1].isnan().all() for tensor in cache.layers[0].tensors()), "the state of an empty row was written"


def test_widths_that_the_kernels_do_not_take_are_named() -> None:
    assert all(obstacle(config) is None for config in CONFIGS.values())
    wide = GatedDeltaNetConfig(num_key_heads=1, num_value_heads=1, key_dim=512, value_dim=16)
    assert obstacle(wide) == "the state of a head has 512 rows, the kernels take at most 256"
    narrow = Mamba2Config(num_heads=4, head_dim=8, state_size=16)
    assert obstacle(narrow) == "head_dim of a layer with a state is 8, no multiple of 16"
    grouped = Mamba2Config(num_heads=4, head_dim=16, state_size=16, num_groups=4)
    assert obstacle(grouped) is None
    assert obstacle(ShortConvConfig(hidden_size=40)) == "channels of a layer with a state is 40, no multiple of 16"


def test_states_of_another_dtype_are_refused() -> None:
    with pytest.raises(AssertionError, match="float32 states"):
        NativeStates(make_cache(CONFIGS["delta"], torch.float64))
