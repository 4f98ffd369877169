"""A response that is not streamed is the same after a cut at any byte of its progress: two choices with logprobs."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.attempts.attempt_reader import AttemptReader
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.attempts.retry_budget import RetryBudget
from support_attempts import WHOLE
from support_attempts_script import of_type

TOKENS = ((11, 12, 13), (21, 22))


def logprobs_of(tokens: tuple[int, ...]) -> dict[str, Any]:
    return {"content": [{"token": str(token), "logprob": -token / 7} for token in tokens], "refusal": None}


def serve(resume: list[list[int]]) -> bytes:
    """Return the progress of a server behind `resume` and its body, whose logprobs are of new tokens only."""
    begins = [len(tokens) for tokens in resume] or [0, 0]
    parts = []
    for position in range(3):
        for index, tokens in enumerate(TOKENS):
            if begins[index] <= position < len(tokens):
                new = (tokens[position],)
                data = {"index": index, "token_ids": new, "position": position, "logprobs": logprobs_of(new)}
                parts.append(b"event: progress\ndata: " + orjson.dumps(data) + b"\n\n")
    choices = [
        {"index": index, "text": str(tokens), "logprobs": logprobs_of(tokens[begins[index] :])}
        for index, tokens in enumerate(TOKENS)
    ]
    body = {"id": "1", "choices": choices, "usage": {"completion_tokens": 5}}
    return b"".join(parts) + b"event: response\ndata: " + orjson.dumps(body) + b"\n\n"


def run(cuts: list[int], *, has_peers: bool) -> tuple[bytes, list[Any]]:
    """Cut the attempts after so many bytes; return the body and the `resume` of each attempt."""
    machine = RequestMachine(replace(WHOLE, num_choices=2), AttemptLimits(), RetryBudget())
    actions, resumes = machine.handle(ev.RequestStarted(), 0.0), []
    for cut in [*cuts, None]:
        pick = next(each for each in actions if isinstance(each, act.PickReplica))
        if pick.fingerprint and not has_peers:
            pick = next(
                each for each in machine.handle(ev.NoReplica(pick.attempt), 0.0) if isinstance(each, act.PickReplica)
            )
            assert pick.fingerprint == ""
        picked = ev.ReplicaPicked(pick.attempt, f"replica-{pick.attempt}", "", "w1", True)
        (send,) = of_type(machine.handle(picked, 0.0), act.SendAttempt)
        resumes.append(send.members.get("resume"))
        reader = AttemptReader(pick.attempt, send.mode)
        events = [*reader.push(serve(send.members.get("resume", []))[:cut]), *reader.close()]
        actions = [action for event in events for action in machine.handle(event, 0.0)]
        if machine.is_final:
            break
    assert isinstance(actions[-1], act.CompleteResponse)
    return b"".join(each.payload for each in of_type(actions, act.DeliverBytes)), resumes


UNCUT = serve([]).rpartition(b"data: ")[2].rstrip()


@pytest.mark.parametrize("has_peers", [True, False])
def test_the_body_is_that_of_an_uncut_response(has_peers: bool) -> None:
    kinds = set()
    for cut in range(0, len(serve([])), 2):
        body, resumes = run([cut, 150], has_peers=has_peers)
        assert body == UNCUT
        kinds.add(str(resumes[1]))
    complete = [str([list(tokens) for tokens in TOKENS])]
    assert (complete[0] in kinds) is has_peers
    assert len(kinds) == (6 if has_peers else 1)
