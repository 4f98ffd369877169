"""Family: the choices of one request, each an ordinary sequence, and who of them reads the prompt for all.

choice 0     reads the prompt ──► first token ...           others share its blocks: a hit of all but the prompt's last
choices 1.. held back ........... join the line ──► ...     token, whose last block is copied
"""

from chairlift.core.request import FinishReason, GenerateRequest, Usage
from chairlift.engine.sequence import Sequence, SequenceStatus


class SequenceGroup:
    """What the sequences of one request have in common; changed only by the scheduler.

    Attributes:
        request: what was asked.
        open: choices that have not ended, by number.
        held: those of them that wait for the prompt to be computed and are not in line yet, in order.
    """

    __slots__ = ("_num_outputs", "_prompt_owner", "deferred", "open", "request")

    def __init__(self, request: GenerateRequest, sequences: list[Sequence], num_outputs: int = 0) -> None:
        """Take the sequences of the choices that are not over; those that are had so many outputs together."""
        self.request = request
        self.open = {sequence.choice_index: sequence for sequence in sequences}
        self.deferred = sequences[1:]
        self._prompt_owner = sequences[0] if sequences else None
        self._num_outputs = num_outputs

    def remove(self, sequence: Sequence) -> None:
        """Forget a choice that ended."""
        del self.open[sequence.choice_index]
        self._num_outputs += sequence.num_output_tokens

    def usage(self) -> Usage:
        """Return the token counts of all choices; what was cached counts for the one that read the prompt."""
        outputs = self._num_outputs + sum(sequence.num_output_tokens for sequence in self.open.values())
        cached = 0 if self._prompt_owner is None else self._prompt_owner.cached_tokens
        return Usage(len(self.request.prompt_token_ids), outputs, cached)

    def fork_source(self, but: Sequence) -> Sequence | None:
        """Return a riding choice, other than this one, that has computed the whole prompt; the youngest of them.

        The youngest has given back the least of it.
        """
        found = None
        for sequence in self.open.values():
            rides = (
                sequence.status is SequenceStatus.RUNNING and sequence.num_computed_tokens >= sequence.num_prompt_tokens
            )
            if (
                rides
                and sequence is not but
                and (found is None or sequence.num_computed_tokens < found.num_computed_tokens)
            ):
                found = sequence
        return found

    def pop_ready(self) -> list[Sequence]:
        """Take out of those held back whoever may join the line now.

        All, once somebody has computed the prompt; one, to read it, when nobody is left who will.
        """
        if not self.deferred:
            return []
        if any(
            each.has_first_token or each.num_computed_tokens >= each.num_prompt_tokens for each in self.open.values()
        ):
            ready, self.deferred = self.deferred, []
            return ready
        if len(self.open) > len(self.deferred):
            return []
        self._prompt_owner = self.deferred.pop(0)
        return [self._prompt_owner]


def resumed_finish_reason(request: GenerateRequest, index: int) -> FinishReason | None:
    """Return why a choice had ended before it was resumed; None when it goes on."""
    tokens = request.resumed_tokens(index)
    if tokens and tokens[-1] in request.all_stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(tokens) == request.params.max_tokens else None
