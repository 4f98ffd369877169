"""StopStringMatcher: finds stop strings across token boundaries in linear time, however the text is split.

All stop strings form one automaton (Aho and Corasick, "Efficient string matching", 1975). Its state is the longest
suffix of the text that is a prefix of a stop string; only this suffix is held back.
"""

from collections import deque
from collections.abc import Sequence


class StopStringAutomaton:
    """The automaton of a request's stop strings, which its choices share; nothing in it changes.

    Attributes:
        next: character -> following state, of each state.
        depth: length of the prefix that each state stands for.
        fail: state of the longest proper suffix that is a prefix of a stop string, too.
        matches: the longest stop string that ends in each state, "" without one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Build the automaton: O(total length of `stops`)."""
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.matches = [""]
        for stop in stops:
            assert stop, "an empty stop string; SamplingParams rejects it"
            self._add(stop)
        self.fail = [0] * len(self.next)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self.next[state]:
                self.next[state][char] = len(self.next)
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.matches.append("")
            state = self.next[state][char]
        self.matches[state] = stop

    def _link(self) -> None:
        """Set the failure link and the match of each state, breadth first."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self.next[state].items():
                back = self.fail[state]
                while back and char not in self.next[back]:
                    back = self.fail[back]
                self.fail[child] = self.next[back].get(char, 0)
                queue.append(child)
            self.matches[state] = self.matches[state] or self.matches[self.fail[state]]


class StopStringMatcher:
    """Searches the text of one choice for its stop strings.

    The stop string that is complete first applies; of several that end at the same character, the longest. So the
    result does not depend on how the text is split. Owns only the text that may yet become a stop string.

        text    … emitted │ could begin a stop string │
                          └── held (depth of state) ──┘
    """

    def __init__(self, automaton: StopStringAutomaton, include: bool = False) -> None:
        """Start before the first character; `include` keeps the matched string in the text."""
        self._automaton = automaton
        self._include = include
        self._state = 0
        self._held = ""
        self._done = False

    def push(self, delta: str) -> tuple[str, str | None]:
        """Add new text; return (text that is certain now, the matched stop string or None).

        Text after a stop string is dropped, and push() must not be called any more.
        """
        assert not self._done, "text was pushed after the end"
        state, following, fail, matches = (
            self._state, self._automaton.next, self._automaton.fail, self._automaton.matches,
        )  # fmt: skip
        text = self._held + delta
        for end, char in enumerate(delta, len(self._held) + 1):
            while state and char not in following[state]:
                state = fail[state]
            state = following[state].get(char, 0)
            if match := matches[state]:
                self._done, self._held = True, ""
                return text[: end if self._include else end - len(match)], match
        self._state = state
        safe = len(text) if self._include else len(text) - self._automaton.depth[state]
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Return the held-back text at the end of the output. push() must not be called any more."""
        self._done = True
        held, self._held = self._held, ""
        return held
