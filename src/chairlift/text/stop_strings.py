"""Stop strings: found across token borders, in linear time, whatever the pieces in which the text arrives.

All stop strings form one automaton (Aho and Corasick, "Efficient string matching", 1975). Its state is the longest
end of the text that begins a stop string; just so much is held back.
"""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Watches one request's text for its stop strings.

    The stop string that is complete first wins; of several that end at the same character, the longest. So the result
    does not depend on how the text is cut. Owns the text that may yet become a stop string, and nothing else.

        text    … said already │ could begin a stop string │
                               └── held (depth of state) ──┘
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """Build the automaton: O(total length of `stops`); `include` keeps the found string in the text."""
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found = [""]  # the longest stop string that ends in this state
        for stop in stops:
            assert stop, "an empty stop string; SamplingParams refuses it"
            self._add(stop)
        self._fail = [0] * len(self._next)
        self._link()
        self._include = include
        self._state = 0
        self._held = ""
        self._done = False

    def push(self, delta: str) -> tuple[str, str | None]:
        """Take new text; return (text that is safe to say now, the stop string that was found or None).

        What follows a stop string is dropped, and nothing may be pushed any more.
        """
        assert not self._done, "text was pushed after the end"
        state, following = self._state, self._next
        text = self._held + delta
        for end, char in enumerate(delta, len(self._held) + 1):
            while state and char not in following[state]:
                state = self._fail[state]
            state = following[state].get(char, 0)
            if found := self._found[state]:
                self._done, self._held = True, ""
                return text[: end if self._include else end - len(found)], found
        self._state = state
        safe = len(text) if self._include else len(text) - self._depth[state]
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Return what was held back: no stop string came of it. Nothing may be pushed any more."""
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
                self._found.append("")
            state = self._next[state][char]
        self._found[state] = stop

    def _link(self) -> None:
        """Set where each state falls back to, breadth first, and what ends there."""
        line = deque(self._next[0].values())
        while line:
            state = line.popleft()
            for char, child in self._next[state].items():
                back = self._fail[state]
                while back and char not in self._next[back]:
                    back = self._fail[back]
                self._fail[child] = self._next[back].get(char, 0)
                line.append(child)
            self._found[state] = self._found[state] or self._found[self._fail[state]]
