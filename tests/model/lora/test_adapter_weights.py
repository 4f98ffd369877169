"""AdapterWeights: what an adapter takes of memory."""

import torch

from chairlift.model.lora.adapter_weights import AdapterWeights, LowRank


def test_the_bytes_are_those_of_all_tensors() -> None:
    low_rank = LowRank(torch.zeros(2, 6), torch.zeros(5, 2), 0.5, torch.zeros(5))
    weights = AdapterWeights({"q": low_rank}, low_rank, {"lm_head": torch.zeros(7, 3, dtype=torch.bfloat16)})
    assert low_rank.rank == 2
    assert weights.num_bytes == 2 * 4 * (12 + 10 + 5) + 2 * 21
