"""RequestOutputKind: one of three, else an error; the defaults of SamplingParams are those of vLLM."""

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.request_output_kind import RequestOutputKind
from chairlift.core.sampling_params import SamplingParams


def test_the_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (16, 0, None, None)
    assert (params.skip_special_tokens, params.ignore_eos, params.detokenize) == (True, False, True)
    assert params.output_kind is RequestOutputKind.CUMULATIVE


def test_the_kind_of_an_output_is_one_of_three() -> None:
    assert SamplingParams(output_kind=1).output_kind is RequestOutputKind.DELTA  # type: ignore[arg-type]
    for value in (3, "delta", None):
        with pytest.raises(InvalidRequest, match="output_kind must be a RequestOutputKind, got ") as caught:
            SamplingParams(output_kind=value)  # type: ignore[arg-type]
        assert caught.value.details == {"param": "output_kind"}
