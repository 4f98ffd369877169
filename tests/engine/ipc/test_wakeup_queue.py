"""Things arrive in order, once, from many threads; one wake-up for any number of them."""

import os
import select
import threading

from chairlift.engine.ipc.wakeup_queue import WakeupQueue


def is_ringing(mailbox: WakeupQueue[int]) -> bool:
    return bool(select.select([mailbox.fileno()], [], [], 0)[0])


def test_things_come_out_in_order_and_once() -> None:
    mailbox: WakeupQueue[int] = WakeupQueue()
    assert not is_ringing(mailbox)
    for thing in range(3):
        mailbox.put(thing)
    assert is_ringing(mailbox)
    assert mailbox.drain() == [0, 1, 2] and mailbox.drain() == [] and not is_ringing(mailbox)
    mailbox.close()


def test_many_things_ring_once() -> None:
    mailbox: WakeupQueue[int] = WakeupQueue()
    for thing in range(100_000):
        mailbox.put(thing)
    assert os.read(mailbox.fileno(), 4096) == b"\0"
    assert len(mailbox.drain()) == 100_000
    mailbox.put(1)
    assert is_ringing(mailbox), "after a take the next thing rings again"
    mailbox.close()


def test_a_byte_from_a_signal_wakes_without_a_thing() -> None:
    mailbox: WakeupQueue[int] = WakeupQueue()
    os.write(mailbox.wakeup_fd, b"\x0f")
    assert is_ringing(mailbox) and mailbox.drain() == [] and not is_ringing(mailbox)
    mailbox.wake()
    assert is_ringing(mailbox) and mailbox.drain() == []
    mailbox.close()


def test_nothing_is_lost_between_threads() -> None:
    mailbox: WakeupQueue[int] = WakeupQueue()
    threads = [threading.Thread(target=lambda: [mailbox.put(1) for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = 0
    while taken < 20_000:
        assert select.select([mailbox.fileno()], [], [], 30)[0], f"{taken} came, then nobody rang"
        taken += len(mailbox.drain())
    for thread in threads:
        thread.join()
    assert taken == 20_000
    mailbox.close()


def test_a_closed_mailbox_keeps_nothing_and_hurts_nobody() -> None:
    mailbox: WakeupQueue[int] = WakeupQueue()
    end = mailbox.fileno()
    mailbox.close()
    mailbox.close()
    mailbox.put(1)
    mailbox.wake()
    assert mailbox.drain() == []
    try:
        os.fstat(end)
    except OSError:
        return
    raise AssertionError("the pipe is still open")
