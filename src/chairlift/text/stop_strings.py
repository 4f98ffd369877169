"""StopStringMatcher: finds stop strings across token boundaries in linear time, however the text is split.

All stop strings form one automaton (Aho and Corasick, "Efficient string matching", 1975). Its state is the longest
suffix of the text that is a prefix of a stop string; only this suffix is held back.
"""

from collections import deque
from collections.abc import Sequence


class StopStringMatcher:
    """Searches the text of one choice for its stop strings.

    The stop string that is complete first applies; of several that end at the same character, the longest. So the
    result does not depend on how the text is split. Owns only the text that may yet become a stop string.

        text    … emitted │ could begin a stop string │
                          └── held (depth of state) ──┘
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """Build the automaton: O(total length of `stops`); `include` keeps the matched string in the text."""
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._matches = [""]  # the longest stop string that ends in this state
        for stop in stops:
            assert stop, "an empty stop string; SamplingParams rejects it"
            self._add(stop)
        self._fail = [0] * len(self._next)
        self._link()
        self._include = include
        self._state = 0
        self._held = ""
        self._done = False

    def push(self, delta: str) -> tuple[str, str | None]:
        """Add new text; return (text that is certain now, the matched stop string or None).

        Text after a stop string is dropped, and push() must not be called any more.
        """
        assert not self._done, "text was pushed after the end"
        state, following = self._state, self._next
        text = self._held + delta
        for end, char in enumerate(delta, len(self._held) + 1):
            while state and char not in following[state]:
                state = self._fail[state]
            state = following[state].get(char, 0)
            if match := self._matches[state]:
                self._done, self._held = True, ""
                return text[: end if self._include else end - len(match)], match
        self._state = state
        safe = len(text) if self._include else len(text) - self._depth[state]
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Return the held-back text at the end of the output. push() must not be called any more."""
        self._done = True
        held, self._held = self._held, ""
        return held

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._matches.append("")
            state = self._next[state][char]
        self._matches[state] = stop

    def _link(self) -> None:
        """Set the failure link and the match of each state, breadth first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                back = self._fail[state]
                while back and char not in self._next[back]:
                    back = self._fail[back]
                self._fail[child] = self._next[back].get(char, 0)
                queue.append(child)
            self._matches[state] = self._matches[state] or self._matches[self._fail[state]]
