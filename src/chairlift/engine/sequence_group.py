"""SequenceGroup: holds the choices of one request; one of them, the prompt owner, computes the prompt for all.

choice 0     computes the prompt ──► first token ...   others share its blocks: a hit of all but the prompt's last
choices 1..  deferred ............ queued ──► ...      token, whose last block is copied

Where choices are resumed and others start with their prompt, the first of the latter is the owner: it alone reports the
prompt's logprobs, before any of them has a token.
"""

from chairlift.core.engine_output import FinishReason, Usage
from chairlift.core.request import GenerateRequest
from chairlift.engine.drafters.draft_record import PREDICTION
from chairlift.engine.sequence import Sequence, SequenceStatus


class SequenceGroup:
    """Groups the sequences of one request; changed only by the scheduler.

    Attributes:
        request: the request.
        open: unfinished choices by choice_index.
        deferred: open choices that wait for the prompt to be computed before they are queued, in order.
    """

    __slots__ = ("_num_confirmed", "_num_outputs", "_num_rejected", "_prompt_owner", "deferred", "open", "request")

    def __init__(self, request: GenerateRequest, sequences: list[Sequence], num_outputs: int = 0) -> None:
        """Group the sequences of the open choices; the finished ones had num_outputs tokens together."""
        self.request = request
        self.open = {sequence.choice_index: sequence for sequence in sequences}
        first = sequences[0] if sequences else None
        self._prompt_owner = next((sequence for sequence in sequences if sequence.needs_prompt_logprobs), first)
        self.deferred = [sequence for sequence in sequences if sequence is not self._prompt_owner]
        self._num_outputs = num_outputs
        self._num_confirmed = self._num_rejected = 0  # drafts of the prediction, in finished choices

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished choice."""
        del self.open[sequence.choice_index]
        self._num_outputs += sequence.num_output_tokens
        if (record := sequence.draft_record) is not None:
            self._num_confirmed += record.confirmed.get(PREDICTION, 0)
            self._num_rejected += record.rejected.get(PREDICTION, 0)

    def usage(self) -> Usage:
        """Return the token counts of all choices; cached tokens are those of the prompt owner.

        Drafts of the prediction are those of finished choices.
        """
        outputs = self._num_outputs + sum(sequence.num_output_tokens for sequence in self.open.values())
        cached = 0 if self._prompt_owner is None else self._prompt_owner.cached_tokens
        return Usage(len(self.request.prompt_token_ids), outputs, cached, self._num_confirmed, self._num_rejected)

    def fork_source(self, receiver: Sequence) -> Sequence | None:
        """Return the running choice that has computed the prompt and the fewest tokens beyond it.

        It has freed the fewest blocks of the prompt.
        """
        source = None
        for sequence in self.open.values():
            has_computed_prompt = (
                sequence.status is SequenceStatus.RUNNING and sequence.num_computed_tokens >= sequence.num_prompt_tokens
            )
            if (
                has_computed_prompt
                and sequence is not receiver
                and (source is None or sequence.num_computed_tokens < source.num_computed_tokens)
            ):
                source = sequence
        return source

    def pop_ready(self) -> list[Sequence]:
        """Remove and return the deferred choices that may be queued now.

        All, once a choice has computed the prompt; one, as the new prompt owner, when no open choice computes it.
        """
        if not self.deferred:
            return []
        if any(
            each.has_first_token or each.num_computed_tokens >= each.num_prompt_tokens for each in self.open.values()
        ):
            ready, self.deferred = self.deferred, []
            return ready
        # An open choice that is not deferred computes the prompt already.
        if len(self.open) > len(self.deferred):
            return []
        self._prompt_owner = self.deferred.pop(0)
        return [self._prompt_owner]


def resumed_finish_reason(request: GenerateRequest, index: int) -> FinishReason | None:
    """Return why a choice had finished before it was resumed; None when it continues."""
    tokens = request.resumed_tokens(index)
    if tokens and tokens[-1] in request.all_stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(tokens) == request.params.max_tokens else None
