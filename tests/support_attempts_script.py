"""Script: a World that a test drives event by event."""

from typing import Any

from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.actions import Action
from chairlift.router.health.breaker import HealthOutcome
from support_attempts import STREAM, Replica, World, make_world

A, B, C, OTHER, FOREIGN = (
    Replica("a"), Replica("b"), Replica("c"), Replica("o", "w2"), Replica("f", "", is_resumable=False)
)  # fmt: skip


class Script(World):
    """A World without expectations, which tests drive event by event; it keeps the actions."""

    def _check(self) -> None:
        pass

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, act.RecordOutcome):
            self.expected[action.attempt] = {action.outcome}
        super()._carry_out(action)

    def begin(self, replica: Replica, number: int = 1, *, num_tokens: int = 0) -> None:
        """Pick a replica, send the request, and let it bring its role and some tokens."""
        self.pick(number, replica)
        self.step(ev.RequestSent(number))
        self.receive(number, num_tokens + (num_tokens > 0))

    def receive(self, number: int, num_events: int) -> None:
        """Let a replica send so many events."""
        for _ in range(num_events):
            self.apply(("next", number))

    def receive_all(self, number: int) -> None:
        """Let a replica send all the rest."""
        for _ in range(10):
            if self.final is None:
                self.apply(("next", number))
        assert self.final is not None, "the response does not end"

    def pick_late(self, number: int, replica: Replica) -> list[Action]:
        """Report a replica that was picked when the attempt had ended."""
        self.picked[number] = replica
        return self.step(ev.ReplicaPicked(number, replica.replica_id, "1", replica.fingerprint, True))

    def outcome(self, number: int = 1) -> HealthOutcome:
        """Return what was recorded for an attempt."""
        return self.outcomes[number]


def script(fields: Any = STREAM, **options: Any) -> Script:
    """Return a Script whose request has started."""
    world = make_world(fields, **options)
    return Script(world.machine, world.budget, fields, picking=world.picking, timers=world.timers)


def of_type(actions: list[Action], kind: type) -> list[Any]:
    """Return the actions of a class."""
    return [action for action in actions if isinstance(action, kind)]
