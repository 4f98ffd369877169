"""SamplingParams: unsupported names are refused with the reason, and unknown ones with the nearest known name."""

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.unknown_sampling_param_errors import NOT_SUPPORTED
from support_shares import for_each


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


@pytest.mark.parametrize("name", ["stop", "echo"])
def test_what_needs_text_cannot_be_combined_with_detokenize_false(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"detokenize must be true with {name}, which needs text"):
        SamplingParams(detokenize=False, **{name: "x" if name == "stop" else True})  # type: ignore[arg-type]
