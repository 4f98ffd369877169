"""ForcedTokensDrafter: proposes the tokens that the grammar of a sequence forces.

The model may write the same text in other tokens, which the grammar allows, too. So they are drafts like others.
"""

from collections.abc import Sequence as Items

from chairlift.engine.sequence import Sequence


class ForcedTokensDrafter:
    """Proposes text that the grammar leaves no choice about: names of properties, punctuation, constants."""

    name = "forced"

    def propose(self, sequence: Sequence, limit: int) -> Items[int]:
        """Return the forced tokens, at most `limit`; none while a sample is in flight."""
        if sequence.grammar is None or sequence.num_pending_samples:
            return ()
        return sequence.grammar.forced_tokens()[:limit]
