"""TransformersCausalLM: logits are those of the model's own head, with its scales, caps and biases."""

from typing import Any

import numpy as np
import pytest
import torch

from chairlift.model.architectures.transformers import load_module
from chairlift.model.runner.runner_config import RunnerConfig
from chairlift.model.sampling.lm_head_output import LogitsRequest
from chairlift.model.transformers.causal_lm import base_of
from chairlift.model.transformers.layer_runner import base_states
from support_bridged_models import bridged_model


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "phi", "granite", "cohere2", "opt", "mixtral", "falcon"])
def test_logits_of_states_are_those_of_the_whole_model(kind: str) -> None:
    model = bridged_model(kind, dtype=torch.float64)
    made: Any = load_module(model, RunnerConfig()).model
    ids = torch.arange(3, 9)
    with torch.inference_mode():
        expected = model(input_ids=ids[None], use_cache=False).logits[0]
        states = base_states(base_of(model), ids, torch.arange(6), use_cache=False)
    assert torch.allclose(made.logits(states), expected, rtol=1e-9, atol=1e-9)
    output = made.head(states, LogitsRequest(np.array([True] + 5 * [False])))
    assert output.argmax_ids.tolist() == expected.argmax(-1).tolist() and output.logits.shape == (1, 304)
    assert (made.vocab_size, made.dtype) == (304, torch.float64)
