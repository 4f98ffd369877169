"""The driver process: reads calls as lines of JSON, makes them to Ray, and writes the answers.

    {"id": 3, "call": "stop", "arguments": {...}}  ->  {"id": 3, "result": null}  or  {"id": 3, "error": "...", ...}

It is a process of its own because Ray's library ends the process that uses it when the head of Ray is gone for a
minute, and waits for ever, deaf to timeouts, for a head that it cannot reach. It ends when its input ends.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Iterable
from typing import Any, Protocol, TextIO

import msgspec

CLOSE_SECONDS = 5.0
"""Time for leaving Ray when the controller is gone; a call that hangs does not keep the process."""

CALLS = ("connect", "snapshot", "create", "stop", "remove")


class Calls(Protocol):
    """What has a method for each name in CALLS."""


def serve(lines: Iterable[str], output: TextIO, calls: Calls) -> None:
    """Answer each line of `lines`, one after the other."""
    for line in lines:
        message = json.loads(line)
        answer: dict[str, Any] = {"id": message["id"]}
        try:
            assert message["call"] in CALLS, message["call"]
            answer["result"] = msgspec.to_builtins(getattr(calls, message["call"])(**message["arguments"]))
        except Exception as error:  # Ray has no common base of its errors
            text = " ".join(str(error).split())
            answer["error"] = f"{type(error).__name__}: {text}"[:500]
            answer["is_timeout"] = isinstance(error, TimeoutError)  # GetTimeoutError is one; the connection is good
        output.write(json.dumps(answer) + "\n")
        output.flush()


def lines_until_closed(source: TextIO, close_seconds: float = CLOSE_SECONDS) -> Iterable[str]:
    """Yield the lines of a file; when it ends, end the process at the latest after `close_seconds`."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in source:
            lines.put(line)
        timer = threading.Timer(close_seconds, os._exit, (1,))
        timer.daemon = True
        timer.start()
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    return iter(lines.get, "")


def main() -> int:
    """Answer calls until standard input ends."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Ray prints
    from chairlift.cluster.ray.ray_calls import RayCalls

    serve(lines_until_closed(sys.stdin), output, RayCalls())
    import ray

    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
