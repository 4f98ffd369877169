"""GenerateRequest: what is refused, and what survives the wire."""

import math
from dataclasses import replace

import msgspec
import pytest

from chairlift.core.adapter_version import AdapterVersion
from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import InvalidRequest
from chairlift.core.numeric_limits import MAX_PRIORITY, MAX_TIMEOUT_SECONDS
from chairlift.core.request import MAX_PREFIX_BOUNDARIES, GenerateRequest
from chairlift.core.sampling_params import LogitBias, SamplingParams
from support_shares import for_each

PARAMS = SamplingParams(logit_bias={3: 1.5}, stop=["END"]).with_defaults({}, max_tokens=9, seed=4)
REQUEST = GenerateRequest(request_id="a", prompt_token_ids=(1, 2, 3), params=PARAMS)


def test_a_request_survives_the_wire() -> None:
    request = replace(
        REQUEST,
        eos_token_ids=(2,),
        priority=-3,
        tenant="t",
        timeout=1.5,
        adapter=AdapterVersion(1, "x"),
        predicted_token_ids=(4, 5),
    )
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerateRequest)
    assert back == request and hash(back) == hash(request)
    assert type(back.params.logit_bias) is LogitBias and type(back.prompt_token_ids) is tuple


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompt has 0 tokens, at least 1 is needed") as caught:
        replace(REQUEST, prompt_token_ids=())
    assert caught.value.details == {"param": "prompt"}


def test_an_empty_id_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="request_id"):
        replace(REQUEST, request_id="")


@for_each("timeout", [math.nan, math.inf, -1e-9, MAX_TIMEOUT_SECONDS * 1.01, "3", True, 10**400])
def test_an_impossible_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidRequest, match="timeout must be"):
        replace(REQUEST, timeout=timeout)


@pytest.mark.parametrize("timeout", [None, 0, 0.5, MAX_TIMEOUT_SECONDS])
def test_a_possible_timeout_is_taken(timeout: float | None) -> None:
    assert replace(REQUEST, timeout=timeout).timeout == timeout


@for_each("priority", [MAX_PRIORITY + 1, -(2**63), 10**400, 0.5, "1", True, None])
def test_an_impossible_priority_is_refused(priority: int) -> None:
    with pytest.raises(InvalidRequest, match="priority must be"):
        replace(REQUEST, priority=priority)


def test_a_bad_request_cannot_come_over_the_wire_either() -> None:
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(REQUEST))
    raw["prompt_token_ids"] = []
    with pytest.raises((InvalidRequest, msgspec.ValidationError), match="at least 1 is needed"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=GenerateRequest)


def test_requests_and_outputs_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        REQUEST.priority = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        EngineOutput("a").finish_reason = FinishReason.STOP  # type: ignore[misc]


# -- prefix boundaries -------------------------------------------------------------------------------------------------


@for_each("boundaries", [(-1,), (4,), (1, 2, 99), (0.5,), ("1",), (True,), (None,)])
def test_a_boundary_outside_the_prompt_is_refused(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="prefix_boundaries must be"):
        replace(REQUEST, prefix_boundaries=boundaries)


def test_boundaries_survive_the_wire_and_the_last_different_ones_are_used_in_order() -> None:
    request = replace(REQUEST, prompt_token_ids=tuple(range(40)), prefix_boundaries=(40, 3, 3, 0, *range(30, 10, -2)))
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerateRequest)
    assert back == request
    assert back.last_prefix_boundaries == (18, 20, 22, 24, 26, 28, 30, 40)
    assert len(back.last_prefix_boundaries) == MAX_PREFIX_BOUNDARIES
    assert replace(request, prefix_boundaries=(3, 0, 3)).last_prefix_boundaries == (0, 3)
    assert REQUEST.last_prefix_boundaries == ()
