"""ClientResponse: a stream cut after any byte and resumed reads like an uncut one; members, held chunks, usage."""

import re
from dataclasses import replace
from random import Random

import pytest

from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.actions import Action, ResponseMode
from chairlift.router.attempts.attempt import Attempt, AttemptLimits, AttemptPurpose
from chairlift.router.attempts.attempt_reader import AttemptReader
from chairlift.router.attempts.chunks import Chunk
from chairlift.router.attempts.client_response import ClientResponse
from chairlift.router.attempts.events import ReplicaPicked
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.attempts.retry_budget import RetryBudget
from support_attempts import DONE, STREAM, WHOLE, chunk, chunk_event

HEAD = re.compile(rb'"created":\d.*?"choices"')
TOKENS = ((11, 12, 13, 14, 15), (21, 22, 23))
"""Tokens of two choices."""


def events_of(index: int, position: int, *, created: int, has_ids: bool) -> list[bytes]:
    """Return the chunks of one token: a role first, no text for 12, two deltas for 13, the finish with the last."""
    token = TOKENS[index][position]
    reason = "stop" if position == len(TOKENS[index]) - 1 else None
    ids = (token,) if has_ids else None
    deltas = [] if position else [{"role": "assistant", "content": ""}]
    if token == 13:
        deltas.append({"reasoning_content": "thought 13"})
    deltas.append({"content": f' "text",{token}\u00e9'})
    if token == 12:
        deltas = [{}] if has_ids else []
    more = {"created": created, "with_usage": True}
    return [
        *(chunk_event(index, delta, **more) for delta in deltas[:-1]),
        *(chunk_event(index, delta, ids=ids, position=position, reason=reason, **more) for delta in deltas[-1:]),
    ]  # fmt: skip


def serve(num_choices: int, resume: list[list[int]], *, created: int, has_ids: bool = True) -> bytes:
    """Return the stream of a server that goes on behind `resume`; a choice that had finished ends once more."""
    parts = []
    for position in range(max(map(len, TOKENS))):
        for index in range(num_choices):
            begin = len(resume[index]) if resume else 0
            if begin == len(TOKENS[index]) and not position:
                parts.append(chunk_event(index, ids=(), position=begin, reason="stop", with_usage=True))
            elif begin <= position < len(TOKENS[index]):
                parts += events_of(index, position, created=created, has_ids=has_ids)
    head = chunk_event(created=created).partition(b'"choices":[{')[0]
    return b"".join(parts) + head + b'"choices":[],"usage":{"completion_tokens":8}}\n\n' + DONE


def run(
    fields: GenerationFields, cuts: list[int], random: Random, prompt_tokens: int = 50
) -> tuple[list[bytes], list[Action], int]:
    """Cut one attempt after another after so many bytes; the last one is whole.

    Return the events at the client, the actions, and the tokens that a prompt of so many costs.
    """
    machine = RequestMachine(fields, AttemptLimits(), RetryBudget())
    actions = machine.handle(ev.RequestStarted(), 0.0)
    for cut in [*cuts, None]:
        picks = [action.attempt for action in actions if isinstance(action, act.PickReplica)]
        if not picks:
            break
        (number,) = picks
        picked = ev.ReplicaPicked(number, f"replica-{number}", "", "w1", True)
        send = next(each for each in machine.handle(picked, 0.0) if isinstance(each, act.SendAttempt))
        assert ("return_token_ids" in send.members) != fields.returns_token_ids
        data = serve(fields.num_choices, send.members.get("resume", []), created=number)[:cut]
        reader = AttemptReader(number, send.mode)
        found: list[ev.AttemptEvent] = []
        while data:
            size = random.randint(1, 400)
            found += reader.push(data[:size])
            data = data[size:]
        found += reader.close(is_reset=random.random() < 0.5)
        actions = [*actions, *(action for event in found for action in machine.handle(event, 0.0))]
        actions = [
            action for action in actions if not (isinstance(action, act.PickReplica) and action.attempt == number)
        ]
    sent = b"".join(action.payload for action in actions if isinstance(action, act.DeliverBytes))
    used_tokens = machine.response.used_tokens(prompt_tokens)
    return [part + b"\n\n" for part in sent.split(b"\n\n")[:-1]], actions, used_tokens


@pytest.mark.share(1)
@pytest.mark.parametrize("keeps_ids", [False, True])
@pytest.mark.parametrize("num_choices", [1, 2])
def test_a_stream_that_is_cut_after_any_byte_reads_like_an_uncut_one(num_choices: int, keeps_ids: bool) -> None:
    fields = replace(STREAM, num_choices=num_choices, includes_usage=True, returns_token_ids=keeps_ids)
    uncut = serve(num_choices, [], created=1, has_ids=keeps_ids)
    expected = [HEAD.sub(b'"created":1', part) + b"\n\n" for part in uncut.split(b"\n\n")[:-1]]
    length = len(serve(num_choices, [], created=1))
    random = Random(num_choices)
    for cut in range(0, length + 1, 1 if num_choices == 1 else 3):
        received, actions, used_tokens = run(fields, [cut, random.randrange(length)], random)
        assert isinstance(actions[-1], act.CompleteResponse)
        assert used_tokens == 50 + sum(map(len, TOKENS[:num_choices])), "prompt and output count once"
        heads = {part.partition(b',"choices":[{')[0] for part in received[:-2]}
        assert len(heads) == 1, "id, time and fingerprint stay those of the first attempt"
        received = [DONE if part == DONE else HEAD.sub(b'"created":1', part) for part in received]
        for index in range(num_choices):
            mine = b'"index":%d,' % index
            assert [part for part in received if mine in part] == [part for part in expected if mine in part]
        assert received[-2:] == expected[-2:], "usage and [DONE] come once and last"
        assert len(received) == len(expected)


def test_members_are_seed_and_token_ids_and_once_there_is_progress_what_was_delivered() -> None:
    response = ClientResponse(STREAM)
    assert response.members() == {"seed": 7, "return_token_ids": True}
    assert response.required_fingerprint == ""
    response.fingerprint = "w1"
    response.append(Attempt(1, AttemptPurpose.FIRST), chunk(0, {"content": "a"}, ids=(5,)))
    assert response.members() == {"seed": 7, "return_token_ids": True, "resume": [[5]], "resume_fingerprint": "w1"}
    assert response.required_fingerprint == "w1"
    assert ClientResponse(WHOLE).members() == {"seed": 7}
    assert ClientResponse(replace(STREAM, seed=None, returns_token_ids=True)).members() == {}


@pytest.mark.parametrize(
    ("replica", "is_resumable"),
    [
        (ReplicaPicked(1, "a", "", "w1", True), True),
        (ReplicaPicked(1, "a", "", "", True), False),
        (ReplicaPicked(1, "a", "", "w1", False), False),
    ],
)
def test_a_response_goes_on_only_on_a_replica_that_reports_the_same_fingerprint(
    replica: ReplicaPicked, is_resumable: bool
) -> None:
    response = ClientResponse(STREAM)
    assert response.is_resumable_on(replica) is is_resumable
    assert response.may_continue_on(replica), "without progress every replica can start"
    response.fingerprint = "w1"
    response.append(Attempt(1, AttemptPurpose.FIRST), chunk(0, {"content": "a"}, ids=(5,)))
    assert response.may_continue_on(replica) is is_resumable
    assert not response.may_continue_on(ReplicaPicked(2, "b", "", "w2", True))


def test_a_held_chunk_is_delivered_with_the_tokens_that_follow_it_or_at_the_end() -> None:
    response, attempt = ClientResponse(replace(STREAM, num_choices=2)), Attempt(1, AttemptPurpose.FIRST)
    role = chunk(0, {"role": "assistant"})
    text = chunk(0, {"content": "a"}, ids=(5,))
    assert response.is_held(attempt, role)
    assert not response.is_held(attempt, text)
    assert response.append(attempt, text) == role.payload + chunk_event(0, {"content": "a"})
    assert response.is_held(attempt, chunk(1, {"role": "assistant"}))
    assert response.flush(attempt) == chunk_event(1, {"role": "assistant"})
    assert response.flush(attempt) == b""


def test_what_is_not_parsed_costs_what_its_usage_says_or_a_token_for_each_event() -> None:
    def used(mode: ResponseMode, *chunks: bytes, end: bytes = b"") -> int:
        response, attempt = ClientResponse(replace(WHOLE, is_streamed=not end)), Attempt(1, AttemptPurpose.FIRST)
        attempt.mode = mode
        assert response.used_tokens(50) == 0, "nothing has come"
        response.has_sent = bool([response.append(attempt, Chunk(each)) for each in chunks] or end)
        response.end(attempt, end)
        return response.used_tokens(50)

    text, usage = b'data: {"choices":[]}\n\n', b'"usage":{"prompt_tokens":7,"completion_tokens":4}}'
    assert used(ResponseMode.OPAQUE, text, text + text + DONE) == 50 + 3
    assert used(ResponseMode.OPAQUE, text, text + b"data: {" + usage + b"\n\n", DONE) == 7 + 4
    assert used(ResponseMode.WHOLE, text, text, end=b"{}") == 50 + 2, "a stream where none was asked for"
    assert used(ResponseMode.WHOLE, end=b"{}") == 50
    assert used(ResponseMode.WHOLE, end=b"{" + usage) == 7 + 4
    assert used(ResponseMode.PROGRESS, end=b"{" + usage) == 7 + 4, "best_of reports no progress"


def test_nothing_is_forgotten_once_the_client_has_a_byte() -> None:
    response = ClientResponse(STREAM)
    response.has_sent = True
    with pytest.raises(AssertionError, match="a part of the response"):
        response.restart()


def test_a_stream_lacks_only_its_end_when_all_choices_and_the_usage_are_delivered() -> None:
    response, attempt = ClientResponse(replace(STREAM, includes_usage=True)), Attempt(1, AttemptPurpose.FIRST)
    response.has_sent = True
    response.append(attempt, chunk(0, {"content": "a"}, ids=(5,), reason="stop"))
    assert not response.lacks_only_end
    usage = next(iter(AttemptReader(1, act.ResponseMode.TOKENS).push(serve(0, [], created=1))))
    assert isinstance(usage, ev.ChunksReceived)
    response.append(attempt, usage.chunks[0])
    assert response.lacks_only_end
