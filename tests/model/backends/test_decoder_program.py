"""DecoderProgram: a plan and a step built from it give the same hidden states, KV cache and lm_head output."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chairlift.core.errors import TokenOutOfRange
from chairlift.engine.step_plan import LAST_SAMPLED, StepPlan
from chairlift.model.attention.base import PagedKV
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.backends.native_backend import NativeBackend
from chairlift.model.batch.input_batch import SlotBlockTables
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.kernels.cpu.packing import gated_rows
from chairlift.model.layers.causal_lm_protocol import ForwardContext, TakesPlans
from chairlift.model.loading.model_building import random_model
from chairlift.model.sampling.lm_head_output import LogitsRequest
from support_native import need_native

CPU = torch.device("cpu")
VOCAB, SLOTS, BLOCK = 203, 6, 16


class DecoderPair:
    """One model with two KV caches: one for plans, one for steps that SlotBlockTables builds from them."""

    def __init__(self, quantization: str = "none") -> None:
        need_native()
        config = parse_decoder_config({
            "architectures": ["Gemma3ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 20, "query_pre_attn_scalar": 32, "final_logit_softcapping": 30.0, "vocab_size": VOCAB,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 72, "intermediate_size": 100,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "max_position_embeddings": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
        })  # fmt: skip
        self.model_backend = NativeBackend(quantization, 2)
        made, _ = random_model(
            config, seed=3, dtype="bfloat16", device=CPU, max_model_len=512, scale=0.1,
            choose_backend=lambda _: self.model_backend,
        )  # fmt: skip
        self.model: Any = made
        assert isinstance(made, TakesPlans)
        self.groups = len(made.groups.windows)
        self.backend = self.model_backend.attention()()
        self.tables = SlotBlockTables(SLOTS, self.groups, BLOCK, VOCAB)
        self.from_plans, self.from_steps = self.cache(), self.cache()
        self.dice = np.random.default_rng(11)
        self.lengths = [0] * SLOTS
        self.next_block = 0

    def cache(self) -> list[PagedKV]:
        groups = self.model.groups
        kv: list[PagedKV] = allocate_kv(self.backend, groups, 400, BLOCK, torch.bfloat16, CPU)
        return kv

    def plan(self, counts: dict[int, int], samples: list[int] | None = None) -> StepPlan:
        """Plan this many tokens of each slot, with the blocks that they need, and apply the plan to the tables."""
        rows = sorted(counts.items(), key=lambda row: row[1] != 1)
        starts, blocks, ids = [self.lengths[slot] for slot, _ in rows], [], []
        for slot, count in rows:
            have, need = (-(-length // BLOCK) for length in (self.lengths[slot], self.lengths[slot] + count))
            for group in range(self.groups):
                for index in range(have, need):
                    blocks.append((slot, group, index, self.next_block))
                    self.next_block += 1
            ids += [LAST_SAMPLED] if count == 1 else self.dice.integers(0, VOCAB, count).tolist()
            self.lengths[slot] += count
        plan = StepPlan(
            step_id=0, released_slots=(), new_sequences=(), new_blocks=np.array(blocks, np.int32).reshape(-1, 4),
            slots=np.array([slot for slot, _ in rows], np.int32), start_positions=np.array(starts, np.int32),
            num_new_tokens=np.array([count for _, count in rows], np.int32), input_ids=np.array(ids, np.int32),
            sample_rows=np.array(range(len(rows)) if samples is None else samples, np.int32),
        )  # fmt: skip
        self.tables.apply(plan)
        return plan

    def states_from_step(self, plan: StepPlan) -> Tensor:
        """Build the step of the plan and run it over the second KV cache."""
        inputs = self.tables.inputs(plan, CPU)
        context = ForwardContext(inputs.batch, self.from_steps, self.backend, None)
        found: Tensor = self.model.forward(inputs.input_ids, context).clone()
        return found

    def same_caches(self) -> bool:
        """Return whether both KV caches have the same bits."""
        pairs = zip(self.from_plans, self.from_steps, strict=True)
        return all(torch.equal(one.key, two.key) and torch.equal(one.value, two.value) for one, two in pairs)


@pytest.mark.share(1)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_plan_gives_what_the_step_made_of_it_gives(quantization: str) -> None:
    pair = DecoderPair(quantization)
    for step in range(30):
        slots = pair.dice.permutation(SLOTS)[: pair.dice.integers(1, SLOTS + 1)].tolist()
        counts = {
            slot: int(pair.dice.choice([1, 1, 5, 40])) if pair.lengths[slot] else int(pair.dice.integers(2, 60))
            for slot in slots
        }
        samples = pair.dice.permutation(len(slots))[: pair.dice.integers(0, len(slots) + 1)].tolist()
        plan = pair.plan(counts, samples)
        expected = pair.states_from_step(plan)
        request = LogitsRequest(pair.dice.random(len(samples)) < 0.4)
        last = plan.num_new_tokens.cumsum()[plan.sample_rows] - 1
        if step % 3 and samples:
            output = pair.model.score_plan(plan, pair.tables, pair.from_plans, request)
            max_logits, argmax_ids = output.max_logits.copy(), output.argmax_ids.copy()
            expected_output = pair.model.head(expected[torch.from_numpy(last)], request)
            assert np.array_equal(max_logits, expected_output.max_logits) and np.array_equal(
                argmax_ids, expected_output.argmax_ids
            )
            assert (
                torch.equal(output.logits, expected_output.logits) and len(output.logits) == request.needs_logits.sum()
            )
            assert len(output.masked_max_logits) == len(output.masked_argmax_ids) == 0
        else:
            assert torch.equal(pair.model.forward_plan(plan, pair.tables, pair.from_plans), expected)
        assert pair.same_caches(), step
        slots = plan.slots.astype(np.int64)
        pair.tables.store_sampled(slots, pair.dice.integers(0, VOCAB, len(slots)).astype(np.int32))


def test_tables_that_do_not_write_leave_the_cache_as_it_is() -> None:
    pair = DecoderPair()
    pair.tables = SlotBlockTables(SLOTS, pair.groups, BLOCK, VOCAB, writes=False)
    plan = pair.plan({0: 30, 1: 7})
    found = pair.model.forward_plan(plan, pair.tables, pair.from_plans)
    assert torch.equal(found, pair.states_from_step(plan))
    assert not any(kv.key.any() or kv.value.any() for kv in pair.from_plans)


@pytest.mark.parametrize("token", [VOCAB, -2, 2**31 - 1])
def test_an_id_that_the_vocabulary_lacks_is_named_and_nothing_is_written(token: int) -> None:
    pair = DecoderPair()
    plan = pair.plan({0: 4})
    plan.input_ids[2] = token
    with pytest.raises(TokenOutOfRange, match=rf"{token} .* {VOCAB}"):
        pair.model.forward_plan(plan, pair.tables, pair.from_plans)
    assert not any(kv.key.any() for kv in pair.from_plans)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "change",
    [
        {"slots": [SLOTS]}, {"slots": [-1]}, {"num_new_tokens": [3]}, {"num_new_tokens": [5]}, {"num_new_tokens": [0]},
        {"start_positions": [-1]}, {"start_positions": [10**6]}, {"start_positions": [2**31 - 2]},
        {"start_positions": [BLOCK]}, {"slots": [1]}, {"num_drafts": [4]}, {"num_drafts": [7]},
    ],
)  # fmt: skip
def test_a_plan_that_names_what_is_not_there_is_an_error_and_the_next_one_is_right(change: dict[str, Any]) -> None:
    pair = DecoderPair()
    plan = pair.plan({0: 4})
    broken = replace(plan, **{name: np.array(value, np.int32) for name, value in change.items()})
    with pytest.raises(RuntimeError, match="does not exist"):
        pair.model.score_plan(broken, pair.tables, pair.from_plans, LogitsRequest(np.zeros(1, bool)))
    assert not any(kv.key.any() for kv in pair.from_plans)
    assert torch.equal(pair.model.forward_plan(plan, pair.tables, pair.from_plans), pair.states_from_step(plan))


def test_other_tables_and_another_cache_are_seen() -> None:
    pair = DecoderPair()
    first = pair.plan({0: 20})
    expected = pair.states_from_step(first)
    assert torch.equal(pair.model.forward_plan(first, pair.tables, pair.from_plans), expected)
    other, more = SlotBlockTables(SLOTS, pair.groups, BLOCK, VOCAB), pair.cache()
    other.apply(first)
    assert torch.equal(pair.model.forward_plan(first, other, more), expected)
    for one, two in zip(pair.from_plans, more, strict=True):
        assert torch.equal(one.key, two.key) and torch.equal(one.value, two.value)


def test_gates_and_ups_stand_in_runs_of_sixteen() -> None:
    weight = torch.arange(40.0)
    rows = gated_rows(weight)
    assert rows[:16].tolist() == list(range(16))
    assert rows[16:32].tolist() == list(range(20, 36))
    assert rows[32:36].tolist() == [16, 17, 18, 19] and rows[48:52].tolist() == [36, 37, 38, 39]
    assert not rows[36:48].any() and len(rows) == 64
