"""Bits of a row: alone, in a decode batch, in a chunk and behind drafts, for each instruction set and kind of weights.

A runner computes the same tokens in different ways. Compared are the logits [V] after each token, their largest value
and its id, with and without the logits, and the keys, values and states that are left.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.step_plan import NewSequence, StepPlan, TokenMasks
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.kernels.cpu.instruction_sets import INSTRUCTION_SET_VARIABLE
from chairlift.model.runner.model_executor import ModelExecutor
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest
from chairlift.model.sampling.sampler import DraftTokens, SamplerOutput
from support_gguf_models import MIXES, write_gguf
from support_models import VOCAB_SIZE, save_tiny
from support_native import instruction_sets, need_native
from support_shares import FULL
from support_step_plans import array, plan_of

BLOCK = 16
PROMPT, LENGTH = 41, 64
"""Tokens of the prompt, and of the whole sequence, which the tokens behind the prompt are forced to be."""

GREEDY = SamplingParams(temperature=0).with_defaults({}, max_tokens=100, seed=0)
WEIGHTS = {
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8-channel": {"dtype": "bfloat16", "quantization": "int8-channel"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
ATTENTION = ("llama", "gemma2", "gemma3-softcap", "gpt_oss", "gemma4", "qwen3_moe")
"""Full attention; windows and a soft cap of attention; windows and a cap of logits; sinks; shared keys; experts."""
STATES = ("qwen3_5", "lfm2", "granite_hybrid")
"""Gated delta net, short convolution, Mamba-2."""

_rng = random.Random(11)
TOKENS = [_rng.randrange(8, VOCAB_SIZE) for _ in range(LENGTH)]
OTHERS = [[_rng.randrange(8, VOCAB_SIZE) for _ in range(length)] for length in (5, 30, 80)]

RowBits = tuple[bytes, float, int]
"""The digest of a row's logits, their largest value and its id."""


class RecordingSampler:
    """Takes the place of a Sampler: keeps what the lm_head gives for each row, and samples its likeliest token."""

    def __init__(self) -> None:
        self.rows: list[RowBits] = []
        self.has_logits = True

    def add_sequence(self, new: NewSequence) -> None:
        """Nothing is sampled from a history."""

    def remove_slot(self, slot: int) -> None:
        """Nothing is kept of a slot."""

    def sample(
        self, head: Callable[[LogitsRequest], LMHeadOutput], slots: np.ndarray, masks: TokenMasks | None = None,
        drafts: DraftTokens | None = None,
    ) -> SamplerOutput:  # fmt: skip
        output = head(LogitsRequest(np.full(len(slots), self.has_logits), masks))
        digests = [hashlib.sha256(row.contiguous().numpy().tobytes()).digest() for row in output.logits.cpu()]
        self.rows = list(
            zip(digests or [b""] * len(slots), output.max_logits.tolist(), output.argmax_ids.tolist(), strict=True)
        )
        tokens = output.argmax_ids.astype(np.int32)
        return SamplerOutput.of_rows(tokens if drafts is None else tokens[drafts.bounds[:-1]])


@dataclass
class Rows:
    """One sequence in a runner: its slot and blocks, what its rows gave, and how many tokens are computed."""

    slot: int
    tokens: list[int]
    tables: list[list[int]]
    computed: int = 0
    found: dict[int, RowBits] = field(default_factory=dict)


@dataclass
class Bits:
    """What a way of computing left: RowBits by position, digests of keys and values, digests of states."""

    rows: dict[int, RowBits]
    cache: list[bytes]
    states: list[bytes]


class Bench:
    """A runner with plans made by hand; every sequence has a new slot and new blocks."""

    def __init__(self, **options: Any) -> None:
        self.runner = TorchRunner(
            RunnerConfig(**{
                "device": "cpu", "kernels": "native", "block_size": BLOCK, "num_blocks": 900, "max_batch_tokens": 512,
                "max_running_requests": 64, **options,
            })
        )  # fmt: skip
        self.info = self.runner.start()
        engine = self.runner._engine
        assert isinstance(engine, ModelExecutor)
        self.engine, self.sampler = engine, RecordingSampler()
        engine.sampler = self.sampler  # type: ignore[assignment]
        self._blocks, self._slots = iter(range(self.info.num_blocks)), iter(range(64))
        self._new: list[Rows] = []

    def add(self, tokens: list[int]) -> Rows:
        groups = range(len(self.info.windows))
        tables = [[next(self._blocks) for _ in range(-(-len(tokens) // BLOCK))] for _ in groups]
        made = Rows(next(self._slots), tokens, tables)
        self._new.append(made)
        return made

    def step(
        self, *parts: tuple[Rows, list[int], int], loads: tuple[tuple[int, int], ...] = (),
        saves: tuple[tuple[int, int, int], ...] = (), **more: Any,
    ) -> None:  # fmt: skip
        """Compute rows of (sequence, input ids, drafts among them); rows of one token come first."""
        blocks = [
            (each.slot, group, index, block)
            for each in self._new for group, table in enumerate(each.tables) for index, block in enumerate(table)
        ]  # fmt: skip
        plan: StepPlan = plan_of(
            [(each.slot, each.computed, ids) for each, ids, _ in parts],
            new_sequences=tuple(NewSequence(each.slot, tuple(each.tokens[:1]), 0, GREEDY) for each in self._new),
            new_blocks=np.array(blocks, np.int32).reshape(-1, 4), state_loads=np.array(loads, np.int32).reshape(-1, 2),
            state_saves=np.array(saves, np.int32).reshape(-1, 3), **more,
        )  # fmt: skip
        if any(drafts for _, _, drafts in parts):
            plan = replace(plan, num_drafts=array(*(drafts for _, _, drafts in parts)))
        self._new.clear()
        self.runner.launch(plan)
        self.runner.collect()
        rows = iter(self.sampler.rows)
        for each, ids, drafts in parts:
            end = each.computed + len(ids)
            each.found |= {place: next(rows) for place in range(end - 1 - drafts, end)}
            each.computed = end

    def prefill(self, sequence: Rows, end: int) -> None:
        self.step((sequence, sequence.tokens[sequence.computed : end], 0))

    def bits(self, sequence: Rows) -> Bits:
        """Return what is left of a sequence, all of whose tokens are computed."""
        assert sequence.computed == len(sequence.tokens)
        kept = [block for table in sequence.tables for block in table]
        cache = [
            hashlib.sha256(tensor[block].contiguous().view(torch.uint8).numpy().tobytes()).digest()
            for layer in self.runner.kv_cache for tensor in (layer.key, layer.value) for block in kept
        ]  # fmt: skip
        layers = () if self.engine.states is None else self.engine.states.layers
        states = [
            hashlib.sha256(tensor[sequence.slot].numpy().tobytes()).digest()
            for layer in layers for tensor in layer.tensors()
        ]  # fmt: skip
        return Bits({place: sequence.found[place] for place in sorted(sequence.found)}, cache, states)


def alone(bench: Bench) -> Bits:
    """Decode one token after the other."""
    sequence = bench.add(TOKENS)
    bench.prefill(sequence, PROMPT)
    for place in range(PROMPT, LENGTH):
        bench.step((sequence, [TOKENS[place]], 0))
    return bench.bits(sequence)


def in_a_batch(bench: Bench) -> Bits:
    """Decode beside three sequences, one of which has a chunk in some steps."""
    sequence, others = bench.add(TOKENS), [bench.add(tokens * 4) for tokens in OTHERS]
    bench.step((sequence, TOKENS[:PROMPT], 0), *((other, other.tokens[:7], 0) for other in others))
    for place in range(PROMPT, LENGTH):
        count = 3 if place % 5 == 0 and others[2].computed < 200 else 1
        singles = [(other, [other.tokens[other.computed % len(other.tokens)]], 0) for other in others[1:2]]
        last = others[2]
        bench.step(
            *singles, (sequence, [TOKENS[place]], 0), (last, last.tokens[last.computed : last.computed + count], 0)
        )
    return bench.bits(sequence)


def in_chunks(bench: Bench) -> Bits:
    """Compute the whole sequence as chunks of a prompt, each sampled behind its last token, beside another's decode."""
    sequence, other = bench.add(TOKENS), bench.add(OTHERS[2])
    bench.prefill(other, 9)
    for end in (13, 45, 46, 60, LENGTH):
        bench.step((other, [other.tokens[other.computed]], 0), (sequence, TOKENS[sequence.computed : end], 0))
    return bench.bits(sequence)


def behind_right_drafts(bench: Bench) -> Bits:
    """Compute rows of 1 to 7 right drafts, the state behind each of which is saved."""
    sequence = bench.add(TOKENS)
    bench.prefill(sequence, PROMPT)
    for count in (1, 3, 7):
        ids = TOKENS[sequence.computed : sequence.computed + 1 + count]
        bench.step((sequence, ids, count), saves=_saves(bench, 0, count))
    ids = TOKENS[sequence.computed :]
    bench.step((sequence, ids, len(ids) - 1), saves=_saves(bench, 0, len(ids) - 1))
    return bench.bits(sequence)


def behind_wrong_drafts(bench: Bench) -> Bits:
    """Compute rows with 0 to 3 right drafts before wrong ones, and load the state behind the last right one."""
    sequence, loads = bench.add(TOKENS), tuple[tuple[int, int], ...]()
    bench.prefill(sequence, PROMPT)
    place, turn = PROMPT, 0
    while place < LENGTH:
        num_right, num_wrong = min(turn % 4, LENGTH - 1 - place), 1 + turn % 3
        num_wrong = min(num_wrong, LENGTH - 1 - place - num_right)
        wrong = [(token + 1 + turn) % VOCAB_SIZE for token in TOKENS[place + num_right + 1 :][:num_wrong]]
        ids = TOKENS[place : place + 1 + num_right] + wrong
        bench.step((sequence, ids, len(ids) - 1), loads=loads, saves=_saves(bench, 0, len(ids) - 1))
        place += 1 + num_right
        sequence.found = {each: row for each, row in sequence.found.items() if each < place}
        loads = ((num_right, sequence.slot),) if wrong and bench.info.has_state else ()
        sequence.computed, turn = place, turn + 1
    return bench.bits(sequence)


def beside_other_drafts(bench: Bench) -> Bits:
    """Compute rows with drafts in a step with a decode, a chunk and rows of other sequences with drafts."""
    sequence, others = bench.add(TOKENS), [bench.add(tokens * 4) for tokens in OTHERS]
    bench.step((sequence, TOKENS[:PROMPT], 0), *((other, other.tokens[:7], 0) for other in others[1:]))
    while sequence.computed < LENGTH:
        ids = TOKENS[sequence.computed :][:5]
        (decode, drafting), count = others[1:], len(ids) - 1
        parts = [
            (decode, [decode.tokens[decode.computed]], 0),
            (others[0], others[0].tokens[others[0].computed :][:2], 0),
            (drafting, drafting.tokens[drafting.computed :][:4], 3),
            (sequence, ids, count),
        ]
        bench.step(*parts, saves=_saves(bench, 3, count))
    return bench.bits(sequence)


def _saves(bench: Bench, row: int, count: int) -> tuple[tuple[int, int, int], ...]:
    """Return the states after the known token and after each draft but the last of a row, as checkpoints 0, 1, ..."""
    return tuple((row, number + 1, number) for number in range(count)) if bench.info.has_state else ()


WAYS = (alone, in_a_batch, in_chunks, behind_right_drafts, behind_wrong_drafts, beside_other_drafts)


def check_ways(**options: Any) -> None:
    """Compare all ways of computing, with logits and without."""
    need_native()
    bench = Bench(**options)
    try:
        expected = alone(bench)
        assert len(expected.rows) == LENGTH - PROMPT + 1 and len({row[2] for row in expected.rows.values()}) > 3
        for way in WAYS[1:]:
            found = way(bench)
            differing = [
                place for place in found.rows if found.rows[place] != expected.rows.get(place, found.rows[place])
            ]
            assert not differing, f"{way.__name__}: other logits at {differing}"
            assert len(found.rows.keys() & expected.rows.keys()) >= 4
            assert found.cache == expected.cache, f"{way.__name__}: other keys or values"
            assert found.states == expected.states, f"{way.__name__}: other states"
        bench.sampler.has_logits = False
        for way in (behind_right_drafts, beside_other_drafts):
            ids = {place: row[1:] for place, row in way(bench).rows.items()}
            assert ids == {place: expected.rows[place][1:] for place in ids}, f"{way.__name__}: without logits"
    finally:
        bench.runner.stop()


def use_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)


@pytest.mark.share(1)
@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", (*ATTENTION, *STATES) if FULL else ("gemma2", "qwen3_5"))
def test_a_row_has_the_same_bits_behind_drafts(
    kind: str, weights: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_set(monkeypatch, name)
    check_ways(model=str(save_tiny(kind, tmp_path)), **WEIGHTS[weights])


@pytest.mark.share(1)
@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("mix", MIXES)
def test_a_row_of_gguf_blocks_has_the_same_bits_behind_drafts(
    mix: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_set(monkeypatch, name)
    tied = {"tie_word_embeddings": "tied" in mix}
    write_gguf(tmp_path / "a.gguf", "qwen3_5" if mix == "Q8_0" else "llama", MIXES[mix], **tied)
    check_ways(model=str(gguf_folder(tmp_path / "a.gguf")), dtype="float32", quantization="auto")
