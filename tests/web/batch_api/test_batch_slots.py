"""BatchSlots: requests of batches begin where there is room, few at a time, in turns, at the latest after a while."""

import asyncio

import pytest

from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.batch_api import batch_slots
from chairlift.web.batch_api.batch_slots import BatchSlots
from support_batch_api import ScriptedRoom


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "POLL_SECONDS", 0.002)


def test_at_most_so_many_are_open_and_batches_take_turns() -> None:
    async def scenario() -> None:
        slots, order, num_open, most = BatchSlots(3, ScriptedRoom()), [], 0, 0

        async def work(name: str) -> None:
            nonlocal num_open, most
            for _ in range(5):
                async with slots.slot():
                    num_open += 1
                    most = max(most, num_open)
                    order.append(name)
                    await asyncio.sleep(0.001)
                    num_open -= 1

        await asyncio.gather(*(work(name) for name in "aaabbb"))
        assert most == 3 and len(order) == 30
        assert 5 < order[:15].count("a") < 10, "neither batch waits for the end of the other one"

    asyncio.run(scenario())


def test_nothing_begins_without_room_until_it_has_waited_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        room = ScriptedRoom(is_open=False)
        slots, begun = BatchSlots(8, room), []

        async def work(number: int) -> None:
            async with slots.slot():
                begun.append(number)

        tasks = [asyncio.create_task(work(number)) for number in range(3)]
        await asyncio.sleep(0.03)
        assert begun == []
        monkeypatch.setattr(batch_slots, "LONGEST_WAIT_SECONDS", 0.1)
        await asyncio.sleep(0.1)
        assert begun == [0], "one at a time"
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
            async with asyncio.timeout(0.03), slots.slot():
                pass
        room.is_serving = True
        if not stops:
            async with slots.slot():
                pass

    asyncio.run(scenario())


def test_requests_without_an_output_are_counted() -> None:
    async def scenario() -> None:
        room = ScriptedRoom()
        slots, admission = BatchSlots(8, room), AdmissionController(AdmissionLimits())
        with slots.opened("alice") as first, slots.opened("") as second:
            assert first.authenticated.tenant == "alice" and second.authenticated.tenant == ""
            assert slots.num_unstarted == 2
            first.permit = admission.admit(1)
            assert slots.num_unstarted == 2
            first.permit.mark_running()
            async with slots.slot():
                assert room.unstarted == [1]
        assert slots.num_unstarted == 0

    asyncio.run(scenario())
