"""WakeupQueue delivers items in order, once, from many threads, with one wake-up for any number."""

import os
import select
import threading

from chairlift.engine.ipc.wakeup_queue import WakeupQueue


def is_readable(queue: WakeupQueue[int]) -> bool:
    return bool(select.select([queue.fileno()], [], [], 0)[0])


def test_items_come_out_in_order_and_once() -> None:
    queue: WakeupQueue[int] = WakeupQueue()
    assert not is_readable(queue)
    for item in range(3):
        queue.put(item)
    assert is_readable(queue)
    assert queue.drain() == [0, 1, 2] and queue.drain() == [] and not is_readable(queue)
    queue.close()


def test_many_items_wake_once() -> None:
    queue: WakeupQueue[int] = WakeupQueue()
    for item in range(100_000):
        queue.put(item)
    assert os.read(queue.fileno(), 4096) == b"\0"
    assert len(queue.drain()) == 100_000
    queue.put(1)
    assert is_readable(queue), "after a drain the next item wakes again"
    queue.close()


def test_a_byte_from_a_signal_wakes_without_an_item() -> None:
    queue: WakeupQueue[int] = WakeupQueue()
    os.write(queue.wakeup_fd, b"\x0f")
    assert is_readable(queue) and queue.drain() == [] and not is_readable(queue)
    queue.wake()
    assert is_readable(queue) and queue.drain() == []
    queue.close()


def test_nothing_is_lost_between_threads() -> None:
    queue: WakeupQueue[int] = WakeupQueue()
    threads = [threading.Thread(target=lambda: [queue.put(1) for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    num_drained = 0
    while num_drained < 20_000:
        assert select.select([queue.fileno()], [], [], 30)[0], f"{num_drained} came, then no wake-up"
        num_drained += len(queue.drain())
    for thread in threads:
        thread.join()
    assert num_drained == 20_000
    queue.close()


def test_a_closed_queue_drops_items_without_an_error() -> None:
    queue: WakeupQueue[int] = WakeupQueue()
    end = queue.fileno()
    queue.close()
    queue.close()
    queue.put(1)
    queue.wake()
    assert queue.drain() == []
    try:
        os.fstat(end)
    except OSError:
        return
    raise AssertionError("the pipe is still open")
