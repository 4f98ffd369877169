"""repeated: calls that go on in threads while a test does something else."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def repeated(calls: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Make each call again and again, in a thread of its own, until the end of the context."""
    is_over = threading.Event()

    def repeat(call: Callable[[], object]) -> None:
        while not is_over.wait(0.1):
            call()

    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
