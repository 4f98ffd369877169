"""The tiny model fits the byte tokenizer, is the same for a seed in every dtype, and does not repeat itself."""

import pytest
import torch

from chairlift.core.errors import ModelError
from chairlift.model.loading.tiny_model import BOS, EOS, PAD, tiny_config, tiny_model

CPU = torch.device("cpu")


def test_its_vocabulary_is_the_bytes_and_three_more() -> None:
    config = tiny_config()
    assert config.vocab_size == 259
    assert sorted((BOS, EOS, PAD)) == [256, 257, 258]
    assert (config.bos_token_id, config.eos_token_ids) == (BOS, (EOS,))


def test_it_has_the_shape_that_it_promises() -> None:
    model, config = tiny_model(seed=0, dtype="auto", device=CPU)
    assert (model.vocab_size, model.groups.page_width) == (259, 2 * 2 * 16)
    assert (model.groups.windows, len(model.groups.caches)) == ((None,), 2)
    assert (config.dtype, config.max_position_embeddings) == ("float32", 1024)


def test_a_seed_gives_the_same_weights_in_every_dtype_up_to_rounding() -> None:
    hidden = torch.eye(64, dtype=torch.float64)[:5]
    wide = tiny_model(seed=3, dtype="float64", device=CPU)[0].logits(hidden)
    narrow = tiny_model(seed=3, dtype="bfloat16", device=CPU)[0].logits(hidden.bfloat16())
    other = tiny_model(seed=4, dtype="float64", device=CPU)[0].logits(hidden)
    assert torch.equal(narrow, wide.bfloat16())
    assert not torch.equal(other, wide)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ModelError, match="float8"):
        tiny_model(seed=0, dtype="float8", device=CPU)


def test_its_noise_is_printable_so_that_it_does_a_terminal_no_harm() -> None:
    logits = tiny_model(seed=1, dtype="auto", device=CPU)[0].logits(torch.randn(50, 64))
    assert not logits[:, :32].any()
    assert not logits[:, 127:].any()
    assert logits[:, 32:127].softmax(-1).amax(-1).median() > 0.5
