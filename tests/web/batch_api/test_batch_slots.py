"""BatchSlots: requests of batches begin where there is room, few at a time, in turns, at the latest after a while."""

import asyncio

import pytest

from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.batch_api import batch_slots
from chairlift.web.batch_api.batch_slots import MAX_LOST_ATTEMPTS, BatchSlots, SlotQueue
from chairlift.web.batch_files.batch_run import BatchResponse
from support_batch_api import ScriptedRoom


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "POLL_SECONDS", 0.002)


def test_at_most_so_many_are_open_and_batches_take_turns() -> None:
    async def scenario() -> None:
        slots, order, num_open, most = BatchSlots(3, ScriptedRoom()), list[str](), 0, 0

        queues = {name: slots.queue("alice") for name in "ab"}

        async def work(name: str) -> None:
            nonlocal num_open, most
            for _ in range(5):
                async with queues[name].slot():
                    num_open += 1
                    most = max(most, num_open)
                    order.append(name)
                    await asyncio.sleep(0.001)
                    num_open -= 1

        await asyncio.gather(*(work(name) for name in "aaabbb"))
        assert most == 3 and len(order) == 30
        assert 5 < order[:15].count("a") < 10, "neither batch waits for the end of the other one"

    asyncio.run(scenario())


async def settle(slots: BatchSlots) -> None:
    """Let requests begin that may begin now."""
    slots._changed.set()
    for _ in range(20):
        await asyncio.sleep(0)


def test_nothing_begins_without_room_until_it_has_waited_long() -> None:
    async def scenario() -> None:
        room = ScriptedRoom(is_open=False)
        clock = [0.0]
        slots, begun = BatchSlots(8, room, lambda: clock[0]), list[int]()
        queue = slots.queue("alice")

        async def work(number: int) -> None:
            async with queue.slot():
                begun.append(number)

        tasks = [asyncio.create_task(work(number)) for number in range(3)]
        await settle(slots)
        for clock[0], expected in ((9.9, []), (10.1, [0]), (20.0, [0]), (20.2, [0, 1])):
            await settle(slots)
            assert begun == expected, "one at a time"
        room.is_open = True
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


@pytest.mark.parametrize("stops", [False, True])
def test_nothing_begins_while_nothing_is_served_or_after_the_stop(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_slots, "LONGEST_WAIT_SECONDS", 0.0)

    async def scenario() -> None:
        room = ScriptedRoom(is_serving=stops)
        slots = BatchSlots(8, room)
        if stops:
            slots.stop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03), slots.queue("").slot():
                pass
        room.is_serving = True
        if not stops:
            async with slots.queue("").slot():
                pass

    asyncio.run(scenario())


def test_requests_without_an_output_are_counted() -> None:
    async def scenario() -> None:
        room = ScriptedRoom()
        slots, admission = BatchSlots(8, room), AdmissionController(AdmissionLimits())
        with slots.opened("alice") as first, slots.opened("") as second:
            assert first.authenticated.tenant == "alice" and second.authenticated.tenant == ""
            assert slots.num_unstarted == 2 == slots.num_unadmitted
            first.permit = admission.admit(1)
            assert slots.num_unstarted == 2 and slots.num_unadmitted == 1
            first.permit.mark_running()
            async with slots.queue("").slot():
                assert room.unstarted == [1]
        assert slots.num_unstarted == 0

    asyncio.run(scenario())


def test_a_request_that_is_not_sent_yet_counts_as_unstarted() -> None:
    async def scenario() -> None:
        room = ScriptedRoom()
        slots = BatchSlots(8, room)
        async with slots.queue("alice").slot(), slots.queue("bob").slot():
            assert room.unstarted == [0, 1] and slots.num_unstarted == 2
            with slots.opened("alice"):
                assert slots.num_unstarted == 2
        assert slots.num_unstarted == 0

    asyncio.run(scenario())


def test_the_tenant_with_the_fewest_open_requests_is_next() -> None:
    async def scenario() -> None:
        slots, order, gate = BatchSlots(4, ScriptedRoom()), list[str](), asyncio.Event()
        queues = {name: slots.queue(name.split()[0]) for name in ("alice 1", "alice 2", "bob")}

        async def work(name: str) -> None:
            async with queues[name].slot():
                order.append(name)
                await gate.wait()

        tasks = [asyncio.create_task(work("alice 1")) for _ in range(6)]
        await settle(slots)
        assert order == ["alice 1"] * 4
        tasks += [asyncio.create_task(work(name)) for name in ("alice 2", "bob", "bob", "bob")]
        await settle(slots)
        assert len(order) == 4
        for task in tasks[:2]:  # two requests end
            task.cancel()
        await settle(slots)
        assert order[4:] == ["bob", "bob"], "though a request of the other tenant waits longer"
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(order) == 10 and slots.num_unstarted == 0

    asyncio.run(scenario())


class Attempts:
    """Requests of some queues that a test begins and ends; `begun` names those that have a slot."""

    def __init__(self, num_slots: int = 8) -> None:
        self.now = 0.0
        self.slots = BatchSlots(num_slots, ScriptedRoom(), lambda: self.now)
        self.begun: dict[str, asyncio.Future[BatchResponse]] = {}
        self.busy: dict[str, bool] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.num_attempts = 1

    async def begin(self, queue: SlotQueue, *names: str) -> None:
        self.tasks += [asyncio.create_task(self._attempt(queue, name)) for name in names]
        await settle(self.slots)

    async def end(self, name: str, status: int, retry_after: float | None = None, num_attempts: int = 1) -> bool:
        self.num_attempts = num_attempts
        self.begun.pop(name).set_result(BatchResponse(status, "", {"error": {"code": "x"}}, retry_after))
        await settle(self.slots)
        return self.busy[name]

    async def later(self, seconds: float) -> list[str]:
        self.now += seconds
        await settle(self.slots)
        return [*self.begun]

    async def _attempt(self, queue: SlotQueue, name: str) -> None:
        async with queue.slot() as attempt:
            self.begun[name] = asyncio.get_running_loop().create_future()
            self.busy[name] = attempt.is_busy(await self.begun[name], self.num_attempts)


def test_a_tenant_at_its_limit_keeps_no_place_and_probes_with_one_request() -> None:
    async def scenario() -> None:
        attempts = Attempts(num_slots=3)
        first, second, bob = (attempts.slots.queue(tenant) for tenant in ("alice", "alice", "bob"))
        await attempts.begin(first, "a1", "a2", "a3")
        await attempts.begin(second, "a4")
        await attempts.begin(bob, "b1", "b2", "b3")
        for name in ("a1", "a2", "a3"):
            assert await attempts.end(name, 429, 7.0)
        assert [*attempts.begun] == ["b1", "b2", "b3"], "the places are those of the other tenant"
        for name in ("b1", "b2"):
            assert not await attempts.end(name, 200)
        await attempts.begin(first, "a5", "a6")
        assert await attempts.later(6.9) == ["b3"]
        assert await attempts.later(0.2) == ["b3", "a4"], "one request of all batches of the tenant"
        assert await attempts.end("a4", 429, 7.0) and await attempts.later(6.9) == ["b3"]
        assert await attempts.later(0.2) == ["b3", "a5"]
        assert not await attempts.end("a5", 200)
        assert await attempts.later(0.0) == ["b3", "a6"]
        for name in ("b3", "a6"):
            await attempts.end(name, 400)
        await asyncio.gather(*attempts.tasks)

    asyncio.run(scenario())


def test_pauses_without_a_time_grow_and_a_lost_service_stops_only_its_batch() -> None:
    async def scenario() -> None:
        attempts = Attempts()
        first, second = attempts.slots.queue("alice"), attempts.slots.queue("alice")
        await attempts.begin(first, "x1", "x2")
        assert await attempts.end("x1", 503) and await attempts.end("x2", 503)
        await attempts.begin(second, "y")
        assert [*attempts.begun] == ["y"], "another batch of the tenant goes on"
        for number, seconds in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)):
            await attempts.begin(first, f"z{number}")
            assert await attempts.later(seconds - 0.01) == ["y"]
            assert await attempts.later(0.02) == ["y", f"z{number}"]
            assert await attempts.end(f"z{number}", 503)
        await attempts.begin(first, "w1", "w2")
        assert await attempts.later(31.0) == ["y", "w1"]
        attempts.tasks[-2].cancel()  # the request that went alone is aborted: another one goes
        assert await attempts.later(0.0) == ["y", "w1", "w2"]
        await attempts.end("w2", 200)
        await attempts.begin(first, "v1", "v2")
        assert {"v1", "v2"} < {*attempts.begun}
        for task in attempts.tasks:
            task.cancel()
        await asyncio.gather(*attempts.tasks, return_exceptions=True)
        assert attempts.slots.num_unstarted == 0

    asyncio.run(scenario())


def test_a_lost_replica_is_waited_for_a_while() -> None:
    async def scenario() -> None:
        attempts = Attempts()
        queue = attempts.slots.queue("alice")
        await attempts.begin(queue, "a", "b", "c")
        assert await attempts.end("a", 502, num_attempts=MAX_LOST_ATTEMPTS - 1)
        assert not await attempts.end("b", 502, num_attempts=MAX_LOST_ATTEMPTS), "it may be the reason"
        await attempts.begin(queue, "d", "e")
        assert [*attempts.begun] == ["c"], "the batch pauses all the same"
        assert await attempts.later(0.6) == ["c", "d"]
        for name in ("c", "d", "e"):
            await attempts.end(name, 200)
        await asyncio.gather(*attempts.tasks)

    asyncio.run(scenario())


def test_a_request_that_is_cancelled_while_it_waits_takes_no_place() -> None:
    async def scenario() -> None:
        attempts = Attempts(num_slots=1)
        queue = attempts.slots.queue("alice")
        await attempts.begin(queue, "a", "b", "c")
        attempts.tasks[1].cancel()
        attempts.begun.pop("a").set_result(BatchResponse(200, "", {}))
        await settle(attempts.slots)
        assert [*attempts.begun] == ["c"]
        attempts.begun.pop("c").set_result(BatchResponse(200, "", {}))
        await settle(attempts.slots)
        await attempts.begin(queue, "d")
        assert [*attempts.begun] == ["d"]
        attempts.tasks[3].cancel()
        await asyncio.gather(*attempts.tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_a_fault_of_the_room_does_not_stop_batches_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    class FailingRoom(ScriptedRoom):
        def has_room(self, num_unstarted: int, num_unadmitted: int) -> bool:
            if super().has_room(num_unstarted, num_unadmitted) and len(self.unstarted) == 1:
                raise RuntimeError("fault")
            return True

    async def scenario() -> None:
        async with asyncio.timeout(20), BatchSlots(1, FailingRoom()).queue("").slot():
            pass

    asyncio.run(scenario())
    assert "internal error: requests of batches wait" in caplog.text
