"""OutputCollector: collects outputs until they are read and merges those of each choice."""

from chairlift.core.engine_output import EngineOutput

WHOLE_REQUEST = -1
"""Choice index of the final output of a request whose last choice has ended before."""


class OutputCollector:
    """Collects outputs of any number of requests, in order within each choice. Not thread-safe.

    `drain` returns them in the order of the first unread output of each choice; the final output of a request comes
    after all others of that request.
    """

    def __init__(self) -> None:
        self._unread: dict[tuple[str, int], list[EngineOutput]] = {}

    def __bool__(self) -> bool:
        return bool(self._unread)

    def put(self, output: EngineOutput) -> int:
        """Add an output; return the number of unread outputs of its choice."""
        key = output.request_id, output.choice_index
        before = self._unread.get(key)
        if before and before[-1].finish_reason is not None:  # the choice keeps its end; this one ends the request
            key = output.request_id, WHOLE_REQUEST
        unread = self._unread.pop(key, []) if output.is_final else self._unread.get(key, [])
        unread.append(output)
        self._unread[key] = unread
        return len(unread)

    def drain(self) -> list[EngineOutput]:
        """Return and forget all outputs, merged into one EngineOutput per choice."""
        unread, self._unread = self._unread, {}
        return [outputs[0] if len(outputs) == 1 else EngineOutput.merged(outputs) for outputs in unread.values()]
