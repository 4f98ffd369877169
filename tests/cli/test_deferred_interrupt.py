"""deferred_interrupt: an interrupt waits for the end of the block, a second one does not; other threads have none."""

import signal
import threading

import pytest

from chairlift.cli.deferred_interrupt import deferred_interrupt


def test_an_interrupt_waits_for_the_end_of_the_block_and_a_second_one_does_not() -> None:
    before, reached = signal.getsignal(signal.SIGINT), []

    def block(interrupts: int) -> None:
        with deferred_interrupt():
            for number in range(interrupts):
                reached.append(number)
                signal.raise_signal(signal.SIGINT)
            reached.append(99)

    with pytest.raises(KeyboardInterrupt):
        block(1)
    with pytest.raises(KeyboardInterrupt):
        block(2)
    block(0)
    assert reached == [0, 99, 0, 1, 99]
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_has_no_interrupt_to_defer() -> None:
    calls: list[int] = []

    def work() -> None:
        with deferred_interrupt():
            calls.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert calls == [1]
