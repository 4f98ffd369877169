"""Messages survive encoding and decoding, errors keep their class; other bytes raise WireError only."""

import contextlib
import inspect
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core import errors
from chairlift.core.adapter_version import AdapterVersion
from chairlift.core.engine_output import EngineOutput, FinishReason, TokenLogprob, Usage
from chairlift.core.errors import ChairliftError, ContextLengthExceeded, EngineDead, InvalidRequest, QueueFull
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import GenerateRequest
from chairlift.core.request_timeline import Timeline, TimelineEvent
from chairlift.core.sampling_params import LogitBias, SamplingParams
from chairlift.engine.client.base import EngineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.error_encoding import as_engine_error
from chairlift.engine.ipc.messages import (
    PROTOCOL,
    REMOTE_METHODS,
    Abort,
    Ack,
    ClientHeartbeat,
    EngineHeartbeat,
    Goodbye,
    Hello,
    Outputs,
    Ready,
    RemoteCall,
    RemoteReply,
    StartFailed,
    StartMessage,
    Submit,
    UnknownClient,
    WatchSteps,
    WireError,
    decode_client_message,
    decode_engine_message,
    decode_reply,
    encode,
    encode_reply,
    read_start,
)
from chairlift.engine.runner.base import RunnerInfo, RunnerSpec
from chairlift.engine.state_snapshot import cache_state
from support_engine import make_scheduler
from support_shares import for_each
from support_step_stats import make_stats

EVERYTHING = SamplingParams(
    temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=-1, frequency_penalty=2,
    logit_bias={0: -100.0, 2**31 - 1: 0.5, 7: 1}, max_tokens=9, min_tokens=2, stop=("é", "\U0001f6a1"),
    stop_token_ids=(3, 4), ignore_eos=True, seed=-(2**63), logprobs=20, skip_special_tokens=False,
    include_stop_str_in_output=True,
)  # fmt: skip
REQUEST = GenerateRequest(
    request_id="a/\u20ac", prompt_token_ids=(0, 1, 2**31 - 1), params=EVERYTHING, eos_token_ids=(2, 7), priority=-3,
    tenant="t", timeout=1.5, adapter=AdapterVersion(2, "ad"),
)  # fmt: skip
INFO = RunnerInfo(
    vocab_size=9,
    max_model_len=8,
    num_blocks=7,
    block_size=6,
    windows=(None, 4),
    device="cuda:1",
    startup_report=(("a", "b"),),
)
LAST = EngineOutput(
    "a", (1, 2), (TokenLogprob(1, -0.25, ((1, -0.25), (5, float("-inf")))),), FinishReason.LENGTH, None, Usage(3, 2, 1),
    Timeline((TimelineEvent("queued", 0.0), TimelineEvent("finished", 0.5, "length")), (("blocks", 0.25),)),
)  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        Hello(PROTOCOL, 1.0, 5.0),
        Submit(REQUEST),
        Abort("a"),
        WatchSteps(True),
        RemoteCall(2**40, "load"),
        RemoteCall(3, "load_adapter", (1, "folder")),
        Ack(7),
        ClientHeartbeat(),
        Goodbye("why"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_client_messages_arrive(message: Any) -> None:
    assert decode_client_message(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(12, INFO, SchedulerConfig(max_prefill_tokens=3)), EngineHeartbeat(LoadReport(state=ReplicaState.READY)),
        Outputs([EngineOutput("x", (1,)), LAST, EngineOutput("y")]),
        Outputs([LAST], [make_stats(7, started_ms=0.125, running=3)], 5),
        RemoteReply(3, b"\x01"), UnknownClient(), Goodbye("why"),
    ],
    ids=lambda message: type(message).__name__,
)  # fmt: skip
def test_engine_messages_arrive(message: Any) -> None:
    assert decode_engine_message(encode(message)) == message


def test_a_logit_bias_keeps_its_integer_keys_and_its_type() -> None:
    message = decode_client_message(encode(Submit(REQUEST)))
    assert isinstance(message, Submit)
    assert message.request.params.logit_bias == {0: -100.0, 2**31 - 1: 0.5, 7: 1.0}
    assert type(message.request.params.logit_bias) is LogitBias
    assert type(message.request.prompt_token_ids) is tuple


def test_outputs_come_out_in_their_own_types() -> None:
    message = decode_engine_message(encode(Outputs([LAST])))
    assert isinstance(message, Outputs)
    (output,) = message.outputs
    assert (
        type(output) is EngineOutput and type(output.finish_reason) is FinishReason and type(output.token_ids) is tuple
    )


def test_a_step_costs_few_bytes() -> None:
    step = Outputs([EngineOutput(str(row), (40_000 + row,)) for row in range(100)])
    assert len(encode(step)) < 100 * 20


KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ChairliftError)]


@for_each("kind", KINDS)
def test_every_kind_of_error_arrives_as_itself(kind: type[ChairliftError]) -> None:
    error = kind.from_wire("what happened", {"param": "prompt", "limit": 3, "share": 0.5, "none": None})
    for message in (Outputs([EngineOutput("a", error=error)]), StartFailed(error), RemoteReply(1, b"", error)):
        arrived: Any = decode_engine_message(encode(message))
        got = arrived.outputs[0].error if isinstance(message, Outputs) else arrived.error
        assert type(got) is kind
        assert (got.message, got.details, str(got)) == ("what happened", error.details, "what happened")


def test_an_error_keeps_the_sentence_of_its_constructor() -> None:
    error = ContextLengthExceeded(5000, 10, 4096)
    message = decode_engine_message(encode(StartFailed(error)))
    assert (
        isinstance(message, StartFailed) and str(message.error) == str(error) and message.error.details == error.details
    )


def test_an_error_crosses_whatever_it_carries() -> None:
    odd: dict[str, Any] = {
        "huge": 2**70, "numpy": np.int64(3), "real": np.float32(0.5), "half": "\ud800", "thing": object, "flag": True,
    }  # fmt: skip
    message = decode_engine_message(encode(StartFailed(QueueFull.from_wire("half \ud800", odd))))
    assert isinstance(message, StartFailed) and type(message.error) is QueueFull
    assert message.error.message == "half ?"
    details = message.error.details
    assert (details["huge"], details["numpy"], details["real"], details["half"]) == (str(2**70), 3, 0.5, "?")


def test_an_error_of_another_program_becomes_the_base_or_engine_dead() -> None:
    frame = encode(StartFailed(QueueFull(1, 2))).replace(b"queue_full", b"from_later")
    message = decode_engine_message(frame)
    assert isinstance(message, StartFailed) and type(message.error) is ChairliftError
    assert type(as_engine_error(ValueError("no"), "it failed")) is EngineDead
    assert str(as_engine_error(ValueError("no"), "it failed")) == "it failed: ValueError: no"
    assert as_engine_error(kept := QueueFull(1, 2), "it failed") is kept


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    ids: Any = tuple(np.array([1, 2], np.int32))
    request = GenerateRequest(request_id="n", prompt_token_ids=ids, params=EVERYTHING)
    message = decode_client_message(encode(Submit(request)))
    assert isinstance(message, Submit) and message.request.prompt_token_ids == (1, 2)


@pytest.mark.parametrize("field", ["request_id", "tenant", "cache_salt"])
def test_half_a_surrogate_pair_cannot_be_written(field: str) -> None:
    names: Any = {"request_id": "r"} | {field: "\ud800"}
    with pytest.raises(WireError, match="Submit cannot be encoded"):
        encode(Submit(GenerateRequest(prompt_token_ids=(1,), params=EVERYTHING, **names)))


def test_a_request_that_could_not_have_been_made_is_no_message() -> None:
    frame = encode(Submit(GenerateRequest(request_id="r", prompt_token_ids=(1,), params=SamplingParams(top_p=0.5))))
    broken = frame.replace(msgspec.msgpack.encode(0.5), msgspec.msgpack.encode(7.5))
    assert broken != frame
    with pytest.raises(WireError, match="top_p"):
        decode_client_message(broken)


@given(st.binary(max_size=64))
def test_random_bytes_raise_nothing_else(frame: bytes) -> None:
    for read in (decode_client_message, decode_engine_message, read_start, lambda some: decode_reply("load", some)):
        with contextlib.suppress(WireError):
            read(frame)


@given(st.randoms(use_true_random=False))
def test_damaged_messages_raise_nothing_else(rng: random.Random) -> None:
    message = rng.choice(
        [Submit(REQUEST), Hello(1, 1.0, 5.0), Outputs([LAST]), StartFailed(QueueFull(1, 2)), RemoteCall(1, "load")]
    )
    frame = bytearray(encode(message))
    for _ in range(rng.randint(1, 4)):
        frame[rng.randrange(len(frame))] = rng.randrange(256)
    damaged = bytes(frame[: rng.randint(0, len(frame))]) + rng.randbytes(rng.choice((0, 0, 3)))
    for read in (decode_client_message, decode_engine_message):
        with contextlib.suppress(WireError):
            read(damaged)


def test_one_sides_messages_are_none_for_the_other() -> None:
    with pytest.raises(WireError):
        decode_engine_message(encode(ClientHeartbeat()))
    with pytest.raises(WireError):
        decode_client_message(encode(UnknownClient()))


def test_every_remote_method_is_a_method_of_every_client() -> None:
    assert set(REMOTE_METHODS) == {
        "load", "scheduler_state", "cache_state", "batch_snapshot", "check_integrity", "flush_cache", "warmup",
        "load_adapter", "drop_adapter",
    }  # fmt: skip
    assert all(hasattr(EngineClient, method) for method in REMOTE_METHODS)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("load", LoadReport(state=ReplicaState.READY, steps=3)),
        ("check_integrity", ["a", "b"]),
        ("flush_cache", 7),
        ("cache_state", cache_state(make_scheduler().cache)),
        ("cache_state", cache_state(make_scheduler(num_state_checkpoints=3).cache)),
    ],
)
def test_a_reply_arrives(method: str, value: Any) -> None:
    message = decode_engine_message(encode(encode_reply(5, value)))
    assert isinstance(message, RemoteReply) and message.number == 5 and message.error is None
    assert decode_reply(method, message.payload) == value


def test_a_call_that_fails_gets_the_error() -> None:
    message = decode_engine_message(encode(encode_reply(5, InvalidRequest("no", param="question"))))
    assert isinstance(message, RemoteReply) and type(message.error) is InvalidRequest


def test_the_start_message_arrives() -> None:
    start = StartMessage(
        spec=RunnerSpec("a:b", b"\x00\xff"), config=SchedulerConfig(scheduling_policy="fifo"),
        enable_prefix_caching=False,
        address="ipc:///x/engine", log_level=20, stop_timeout=3.0, draft_spec=RunnerSpec("c:d", b"x"),
    )  # fmt: skip
    assert read_start(encode(start)) == start
