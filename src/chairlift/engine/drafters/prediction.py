"""PredictionDrafter: proposes the continuation of the output that a request predicts, as in an edit of a text.

prediction   a b c d e f g h       the output has left it at d and is back behind f g h:
output       a b c X f g h ?       what follows there is proposed next
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence as Items
from weakref import WeakKeyDictionary, WeakValueDictionary

from chairlift.engine.drafters.draft_record import PREDICTION
from chairlift.engine.sequence import Sequence

MATCHED_TOKENS = 3
"""Tokens at the end of an output that must be equal to some of the prediction, once it has left the prediction."""

INDEXED_TOKENS = 512
"""Tokens of a prediction that one step adds to the index at most, which takes about a quarter of a millisecond."""


class PredictedTokens:
    """The predicted tokens of a request, for all its choices, and where each run of MATCHED_TOKENS of them is.

    Attributes:
        token_ids: the tokens.
    """

    __slots__ = ("__weakref__", "_ends", "_num_indexed", "token_ids")

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self.token_ids = token_ids
        self._ends: dict[tuple[int, ...], array[int]] = {}  # run of tokens -> the positions behind it, in order
        self._num_indexed = MATCHED_TOKENS - 1

    def position_behind(self, tokens: tuple[int, ...], near: int) -> int | None:
        """Return the position behind MATCHED_TOKENS tokens: the first from `near` on, else the last before it.

        Only what is indexed is found.
        """
        ends = self._ends.get(tokens)
        if ends is None:
            return None
        place = bisect_left(ends, near)
        return ends[place] if place < len(ends) else ends[-1]

    def index_more(self) -> None:
        """Index the next INDEXED_TOKENS tokens."""
        token_ids, ends = self.token_ids, self._ends
        start = self._num_indexed
        self._num_indexed = max(start, min(start + INDEXED_TOKENS, len(token_ids)))
        for end in range(start + 1, self._num_indexed + 1):
            tokens = token_ids[end - MATCHED_TOKENS : end]
            if (others := ends.get(tokens)) is None:
                ends[tokens] = array("i", (end,))
            else:
                others.append(end)


class _Cursor:
    """Follows one output through its prediction.

    Attributes:
        predicted: the prediction.
        position: of the next token in the prediction, while the output follows it; else where it has left it.
        is_following: whether the output's last token is the one before `position`; true before the first one.
        num_read: tokens of the output that were compared.
    """

    __slots__ = ("is_following", "num_read", "position", "predicted")

    def __init__(self, predicted: PredictedTokens) -> None:
        self.predicted = predicted
        self.position = self.num_read = 0
        self.is_following = True

    def read(self, sequence: Sequence) -> None:
        """Compare the tokens that the output has got since the last call."""
        known, expected = sequence.token_ids, self.predicted.token_ids
        if sequence.num_output_tokens == self.num_read:
            return
        self.predicted.index_more()
        for place in range(sequence.num_prompt_tokens + self.num_read, len(known)):
            self.is_following = (
                self.is_following and self.position < len(expected) and known[place] == expected[self.position]
            )
            self.position += self.is_following
        self.num_read = sequence.num_output_tokens
        if not self.is_following and self.num_read >= MATCHED_TOKENS:
            position = self.predicted.position_behind(tuple(known[-MATCHED_TOKENS:]), self.position)
            if position is not None:
                self.position, self.is_following = position, True


class PredictionDrafter:
    """Follows the output through the prediction of its request and proposes the tokens behind the last equal one.

    Where an output leaves its prediction it is found again by its last MATCHED_TOKENS tokens, at the nearest place
    behind, else at the nearest before. Takes constant time for each token of output and prediction. See Drafter.
    """

    name = PREDICTION

    def __init__(self) -> None:
        self._cursors: WeakKeyDictionary[Sequence, _Cursor] = WeakKeyDictionary()
        self._predicted: WeakValueDictionary[str, PredictedTokens] = WeakValueDictionary()  # by request id

    def propose(self, sequence: Sequence, limit: int) -> Items[int]:
        """See Drafter."""
        token_ids = sequence.request.predicted_token_ids
        if not token_ids:
            return ()
        cursor = self._cursors.get(sequence)
        if cursor is None:
            cursor = self._cursors[sequence] = _Cursor(self._predicted_tokens(sequence.request_id, token_ids))
        cursor.read(sequence)
        return token_ids[cursor.position : cursor.position + limit] if cursor.is_following else ()

    def _predicted_tokens(self, request_id: str, token_ids: tuple[int, ...]) -> PredictedTokens:
        """Return the value that all choices of a request share."""
        predicted = self._predicted.get(request_id)
        if predicted is None or predicted.token_ids is not token_ids:
            predicted = self._predicted[request_id] = PredictedTokens(token_ids)
        return predicted
