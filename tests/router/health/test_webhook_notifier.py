"""WebhookNotifier: transitions are posted in order, failures tried again; a slow receiver costs a bounded queue."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.health.health_state import HealthState, Transition, TransitionCause
from chairlift.router.health.webhook_notifier import NotifyConfig, WebhookNotifier
from support_scripted_replica import TIMEOUT_SECONDS, Answer, ScriptedReplica, reset, response, stall

Scenario = Callable[[WebhookNotifier, ScriptedReplica], Awaitable[None]]


def transition(number: int = 0) -> Transition:
    return Transition(
        replica_id=f"http://a:{number}", old=HealthState.HEALTHY, new=HealthState.EJECTED,
        cause=TransitionCause.CONSECUTIVE_FAULTS, reason="3 requests in a row failed", at_seconds=5.0,
        incarnation="p1", ejection_seconds=30.0,
    )  # fmt: skip


def run(scenario: Scenario, answer: Answer, *, timeout: float = TIMEOUT_SECONDS, max_waiting: int = 256) -> None:
    """Run a scenario with a notifier and its receiver."""

    async def main() -> None:
        async with ScriptedReplica({"/hook?key=secret": answer}) as receiver, aiohttp.ClientSession() as session:
            config = NotifyConfig(
                url=f"{receiver.url}/hook?key=secret", headers={"x-token": "t"}, timeout_seconds=timeout,
                retry_seconds=0.001, max_waiting=max_waiting,
            )  # fmt: skip
            notifier = WebhookNotifier(config, session, router_name="r1", wall_clock=lambda: 1_800_000_000.25)
            task = asyncio.create_task(notifier.run())
            try:
                await scenario(notifier, receiver)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 2 * TIMEOUT_SECONDS))


def test_a_transition_is_posted_as_json() -> None:
    async def scenario(notifier: WebhookNotifier, receiver: ScriptedReplica) -> None:
        notifier.on_transition(transition())
        assert await notifier.flush(TIMEOUT_SECONDS)
        assert receiver.headers[0].startswith("POST /hook?key=secret ") and "x-token: t" in receiver.headers[0].lower()
        assert json.loads(receiver.bodies[0]) == {
            "type": "replica_state", "router": "r1", "time": "2027-01-15T08:00:00.250+00:00",
            "text": "replica http://a:0 is ejected, was healthy: 3 requests in a row failed",
            "replica": "http://a:0", "incarnation": "p1", "old_state": "healthy", "new_state": "ejected",
            "cause": "consecutive_faults", "reason": "3 requests in a row failed", "ejection_seconds": 30.0,
        }  # fmt: skip
        assert (notifier.num_sent, notifier.num_failed, notifier.num_dropped) == (1, 0, 0)

    run(scenario, response(204))


def test_notifications_keep_their_order() -> None:
    async def scenario(notifier: WebhookNotifier, receiver: ScriptedReplica) -> None:
        for number in range(30):
            notifier.on_transition(transition(number))
        assert await notifier.flush(TIMEOUT_SECONDS)
        assert [json.loads(body)["replica"] for body in receiver.bodies] == [f"http://a:{n}" for n in range(30)]

    run(scenario, response(200, b"ok"))


@pytest.mark.parametrize("answer", [response(500), response(503), response(429), reset])
def test_a_failure_is_tried_again_and_a_later_success_counts(answer: Answer) -> None:
    async def scenario(notifier: WebhookNotifier, receiver: ScriptedReplica) -> None:
        notifier.on_transition(transition())
        await receiver.wait_for_requests(2)
        receiver.answers["/hook?key=secret"] = response(200)
        assert await notifier.flush(TIMEOUT_SECONDS)
        assert (notifier.num_sent, notifier.num_failed) == (1, 0) and len(set(receiver.bodies)) == 1

    run(scenario, answer)


def test_a_receiver_that_fails_for_good_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(notifier: WebhookNotifier, receiver: ScriptedReplica) -> None:
        notifier.on_transition(transition())
        assert await notifier.flush(TIMEOUT_SECONDS)
        assert (notifier.num_failed, len(receiver.paths)) == (1, 5)

    run(scenario, response(500))
    assert "was not accepted by 127.0.0.1: it answers 500" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410])
def test_a_refusal_is_not_tried_again(status: int) -> None:
    async def scenario(notifier: WebhookNotifier, receiver: ScriptedReplica) -> None:
        notifier.on_transition(transition())
        notifier.on_transition(transition(1))
        assert await notifier.flush(TIMEOUT_SECONDS)
        assert (notifier.num_failed, len(receiver.paths)) == (2, 2)

    run(scenario, response(status, headers="location: http://127.0.0.1:1/\r\n"))


def test_a_receiver_that_stalls_costs_memory_for_a_bounded_queue_only() -> None:
    async def scenario(notifier: WebhookNotifier, receiver: ScriptedReplica) -> None:
        notifier.on_transition(transition())
        await receiver.wait_for_requests(1)
        for number in range(1, 101):
            notifier.on_transition(transition(number))
        assert notifier.num_dropped == 90 and not await notifier.flush(0.01)
        receiver.answers["/hook?key=secret"] = response(200)
        await receiver.stop()
        await receiver.start()
        assert await notifier.flush(TIMEOUT_SECONDS)
        assert json.loads(receiver.bodies[-1])["replica"] == "http://a:100", "the newest are kept"
        assert notifier.num_sent == 11

    run(scenario, stall, max_waiting=10)


def test_an_attempt_ends_after_its_timeout() -> None:
    async def scenario(notifier: WebhookNotifier, receiver: ScriptedReplica) -> None:
        notifier.on_transition(transition())
        assert await notifier.flush(TIMEOUT_SECONDS)
        assert (notifier.num_failed, len(receiver.paths)) == (1, 5)

    run(scenario, stall, timeout=0.05)


def test_a_url_without_sense_fails_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            notifier = WebhookNotifier(NotifyConfig(url="http://:x/secret"), session)
            task = asyncio.create_task(notifier.run())
            notifier.on_transition(transition())
            assert await notifier.flush(TIMEOUT_SECONDS) and notifier.num_failed == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert caplog.text.rstrip().endswith("InvalidUrlClientError") and "secret" not in caplog.text


@pytest.mark.parametrize("url", ["", "hooks.example", "ftp://hooks.example", "file:///etc/passwd"])
def test_a_url_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="notify_url must be an http or https URL, such as https://hooks"):
        NotifyConfig(url=url)


def test_bounds_without_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be at least 1, got 0 and 5"):
        NotifyConfig(url="http://h", max_waiting=0)
