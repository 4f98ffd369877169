"""Network: conversations in a row do not attend to each other, and each parameter is in one of the two optimizers."""

from itertools import islice
from random import Random

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from chairlift import demo
from demo_model.conversations import SKILLS, Conversation, draw
from demo_model.network_and_optimizers import Optimizers, loss_of, make_network
from demo_model.tokenizing_and_packing import Rows, Writer, packed


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(demo.FOLDER)


@pytest.fixture(scope="module")
def network(writer: Writer) -> LlamaForCausalLM:
    return make_network(3, writer.end, writer.padding).double()


@pytest.mark.full
def test_the_loss_of_packed_rows_is_that_of_each_alone(writer: Writer, network: LlamaForCausalLM) -> None:
    rng = Random(1)
    written = [writer.task(draw(rng, skill, held_out=None)) for skill in islice(SKILLS.values(), 8)]
    length = max(len(ids) for ids, _ in written)
    together = packed(iter(written), 3, 4 * length)
    assert (together.parts.max(1) > 1).any(), "some rows hold several"
    total, count = loss_of(network, together)
    expected = 0.0
    for ids, said in written:
        logits = network(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected -= sum(logits[place - 1, ids[place]].item() for place in range(1, len(ids)) if said[place])
    assert count == sum(sum(said) for _, said in written)
    assert total.item() == pytest.approx(expected, rel=1e-6)


def test_the_first_token_of_a_text_is_not_guessed_from_the_one_before(
    writer: Writer, network: LlamaForCausalLM
) -> None:
    """What stands before it in the row belongs to somebody else."""
    plain = writer.ids(Conversation(text="Nobody asked."))
    alone, twice = (loss_of(network, packed(iter([plain] * times), 1, 32)) for times in (1, 2))
    assert twice[0].item() == pytest.approx(2 * alone[0].item(), rel=1e-6)
    assert (alone[1], twice[1]) == (len(plain[0]) - 1, 2 * len(plain[0]) - 2)


def test_seeds_make_the_weights_and_the_shape_is_small(writer: Writer) -> None:
    first, same, other = (make_network(seed, writer.end, writer.padding) for seed in (3, 3, 4))
    pairs = zip(first.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    config = first.config
    assert 2e6 <= first.num_parameters() <= 4e6 and config.max_position_embeddings >= 1024
    assert config.num_key_value_heads < config.num_attention_heads
    assert not any(size % 64 for size in (config.hidden_size, config.intermediate_size, config.head_dim))


@pytest.mark.full
def test_every_parameter_is_trained_once_and_learns(writer: Writer) -> None:
    network = make_network(3, writer.end, writer.padding)
    optimizers = Optimizers(network, 0.003, 0.003)
    rows = packed(iter([writer.task(draw(Random(1), SKILLS["about"], held_out=None))]), 1, 256)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    losses = []
    for _ in range(8):
        total, count = loss_of(network, rows)
        torch.autograd.backward(total / count)
        optimizers.step(1.0)
        losses.append(total.item() / count)
    assert losses[-1] < losses[0] / 2
    assert not any(torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in network.parameters())


def test_nothing_learnt_is_no_loss(network: LlamaForCausalLM) -> None:
    empty = np.zeros((1, 4), np.int64)
    total, count = loss_of(network, Rows(empty, empty + 1, empty, np.zeros((1, 4), np.bool_)))
    assert (total.item(), count) == (0.0, 0)
