"""News: outputs that nobody has taken yet; what one choice has said in a row is taken as one."""

from chairlift.core.request import EngineOutput

WHOLE_REQUEST = -1
"""Stands for the choice where a whole request ends behind one that has ended before."""


class OutputCollector:
    """Collects outputs of any number of requests, each choice's in order. Not thread-safe.

    They are taken in the order in which their choices began to speak, but the last one of a request is behind all
    others of that request.
    """

    def __init__(self) -> None:
        self._unread: dict[tuple[str, int], list[EngineOutput]] = {}

    def __bool__(self) -> bool:
        return bool(self._unread)

    def put(self, output: EngineOutput) -> int:
        """Take an output in; returns how many there are of its choice now."""
        key = output.request_id, output.choice_index
        before = self._unread.get(key)
        if before and before[-1].finish_reason is not None:  # that choice keeps its end; this is the request's
            key = output.request_id, WHOLE_REQUEST
        unread = self._unread.pop(key, []) if output.is_final else self._unread.get(key, [])
        unread.append(output)
        self._unread[key] = unread
        return len(unread)

    def drain(self) -> list[EngineOutput]:
        """Return what is there, one Output a choice, and keep nothing."""
        taken, self._unread = self._unread, {}
        return [outputs[0] if len(outputs) == 1 else EngineOutput.merged(outputs) for outputs in taken.values()]
