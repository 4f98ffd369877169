"""unpacked: codes of every width, and words whose last axis has another stride."""

import numpy as np
import pytest
import torch

from chairlift.model.weights.formats.packed_codes import unpacked
from support_quantized import pack_stream


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_codes_are_unpacked_in_their_order(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, (5, 96))
    assert torch.equal(unpacked(torch.from_numpy(pack_stream(codes, bits)), bits).long(), torch.from_numpy(codes))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rows_of_one_word_may_have_any_strides(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, (5, 32 // bits))
    words = torch.from_numpy(pack_stream(codes, bits)).view(1, 5).t()
    assert words.stride() == (1, 5)
    assert torch.equal(unpacked(words, bits).long(), torch.from_numpy(codes))
