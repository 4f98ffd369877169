"""SamplingParams: the names and defaults of vLLM, and what is said about names that it lacks."""

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.vllm_sampling_names import NOT_SUPPORTED, RequestOutputKind
from support_shares import for_each


def test_the_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (16, 0, None, None)
    assert (params.skip_special_tokens, params.ignore_eos, params.detokenize) == (True, False, True)
    assert params.output_kind is RequestOutputKind.CUMULATIVE


@for_each("name", NOT_SUPPORTED)
def test_a_parameter_of_vllm_that_is_not_supported_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(TypeError) as caught:
        SamplingParams(**{name: True})
    assert str(caught.value) == f"SamplingParams has no {name}: {NOT_SUPPORTED[name]}"


def test_an_unknown_parameter_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match="SamplingParams has no max_token; did you mean 'max_tokens'"):
        SamplingParams(max_token=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="SamplingParams has no zzz; available are n, best_of, temperature"):
        SamplingParams(zzz=5)  # type: ignore[call-arg]


def test_the_kind_of_an_output_is_one_of_three() -> None:
    assert SamplingParams(output_kind=1).output_kind is RequestOutputKind.DELTA  # type: ignore[arg-type]
    for value in (3, "delta", None):
        with pytest.raises(InvalidRequest, match="output_kind must be a RequestOutputKind, got ") as caught:
            SamplingParams(output_kind=value)  # type: ignore[arg-type]
        assert caught.value.details == {"param": "output_kind"}


@pytest.mark.parametrize("name", ["stop", "echo"])
def test_what_needs_text_cannot_be_combined_with_detokenize_false(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"detokenize must be true with {name}, which needs text"):
        SamplingParams(detokenize=False, **{name: "x" if name == "stop" else True})  # type: ignore[arg-type]
