"""AdaptedDecoder: base rows keep their bits, and an adapter can come and go; numbers are compared in the oracle."""

import numpy as np
import pytest
import torch

from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.layers.adapted_decoder import AdaptedDecoder
from chairlift.model.layers.ops import TorchOps
from chairlift.model.loading.model_building import load_model
from chairlift.model.lora.adapter_weights import EMBEDDING, LM_HEAD, AdapterWeights, LowRank
from support_models import save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> AdaptedDecoder:
    folder = save_tiny("llama", tmp_path_factory.mktemp("llama"), seed=5)
    made, _ = load_model(
        folder, dtype="bfloat16", device=torch.device("cpu"), max_model_len=None,
        choose_backend=lambda _: TorchBackend(TorchOps(), adapts=True),
    )  # fmt: skip
    assert isinstance(made, AdaptedDecoder)
    return made


def numbers(*each: int) -> np.ndarray:
    return np.array(each, np.int32)


def test_embeddings_and_logits_of_a_row_are_those_of_its_adapter(model: AdaptedDecoder) -> None:
    outputs, inputs = model.adaptable[LM_HEAD]
    table, part = torch.randn(outputs, inputs).bfloat16(), LowRank(torch.randn(2, outputs), torch.randn(inputs, 2), 0.5)
    head = LowRank(torch.randn(2, inputs), torch.randn(outputs, 2), 0.5, torch.rand(outputs))
    model.add_adapter(1, AdapterWeights({}, None, {EMBEDDING: table, LM_HEAD: table}))
    model.add_adapter(2, AdapterWeights({LM_HEAD: head}, part))
    ids, hidden = torch.tensor([5, 6, 5, 7]), torch.randn(4, inputs).bfloat16()
    model.use_adapters(None)
    plain, plain_logits = model.embed(ids), model.logits(hidden)
    model.use_adapters(numbers(0, 1, 2, 0))
    found, logits = model.embed(ids), model.logits(hidden)
    for row in (0, 3):
        assert torch.equal(found[row], plain[row]) and torch.equal(logits[row], plain_logits[row])
    assert torch.equal(found[1], table[6])
    assert torch.equal(found[2], (plain[2].float() + 0.5 * (part.b @ part.a[:, 5])).bfloat16())
    torch.testing.assert_close(logits[1], table.float().matmul(hidden[1].float()).bfloat16(), atol=0.1, rtol=0.02)
    assert head.gain is not None
    expected = head.gain * (plain_logits[2].float() + 0.5 * (head.b @ (head.a @ hidden[2].float())))
    torch.testing.assert_close(logits[2].float(), expected, atol=0.1, rtol=0.02)
    model.remove_adapter(1)
    with pytest.raises(RuntimeError, match="adapter 1 is not loaded"):
        model.use_adapters(numbers(1))
    model.use_adapters(numbers(2, 0))
    model.remove_adapter(2)


def test_the_adaptable_projections_are_those_of_the_layers_and_the_lm_head(model: AdaptedDecoder) -> None:
    names = {name.split(".")[-1] for name in model.adaptable}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}
