"""ChoiceState: turns the tokens of one choice into text and ends the choice at its stop strings."""

from math import inf

from chairlift.core.engine_output import FinishReason, TokenLogprob
from chairlift.core.request import GenerateRequest
from chairlift.llm.outputs import CompletionOutput
from chairlift.text.detokenizer import Detokenizer
from chairlift.text.stop_strings import StopStringAutomaton, StopStringMatcher
from chairlift.text.tokenizer import Tokenizer


class ChoiceState:
    """State of one choice, with its held-back text. Only OutputProcessor uses more than `output`.

    Attributes:
        output: tokens and logprobs so far; its text is set at the end.
        text_parts: text that is certain, in parts.
        pending_echo: the echoed prompt, until the first event carries it.
        delivered: text of the tokens that the request resumes from.
        ended: whether the choice's last event was made.
        resumed_to_stop_string: the stop string at which the choice had ended before it was resumed.
    """

    def __init__(
        self, request: GenerateRequest, index: int, tokenizer: Tokenizer | None, echo: str | None,
        stops: StopStringAutomaton | None,
    ) -> None:  # fmt: skip
        """Start after the resumed tokens; `echo` is the prompt's text with which the text starts.

        `stops` has the request's stop strings, None without any.
        """
        params = request.params
        self._request = request
        self._stop_ids = request.all_stop_token_ids
        self._stops = None if stops is None else StopStringMatcher(stops, params.include_stop_str_in_output)
        context = () if echo is None else request.prompt_token_ids
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, params.skip_special_tokens, context)
        logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self.output = CompletionOutput(index=index, seed=params.seed or 0, token_logprobs=logprobs)
        self._is_flushed = False
        self.text_parts = [echo or ""]
        self.pending_echo = echo or ""
        self.delivered = ""
        self.ended = False
        self.resumed_to_stop_string: str | None = None
        if resumed := request.resumed_tokens(index):
            self._resume(resumed)

    @property
    def mean_logprob(self) -> float:
        """Mean logprob of the tokens, -inf without tokens."""
        logprobs = self.output.token_logprobs or []
        return sum(entry.logprob for entry in logprobs) / len(logprobs) if logprobs else -inf

    def add_tokens(self, token_ids: tuple[int, ...], *, last: bool) -> tuple[str, int, str | None]:
        """Add tokens; `last` is whether the engine ends the choice with them.

        Returns the text that is certain now, the number of tokens used, and the stop string that ended the choice with
        the last of these, or None. Raises the tokenizer's errors.
        """
        stops = last and bool(token_ids) and token_ids[-1] in self._stop_ids
        text_token_ids = token_ids[:-1] if stops else token_ids  # a token that stops the request has no text
        if self._stops is None:
            text = self._text_of(text_token_ids)
        else:
            text = ""
            for count, token in enumerate(text_token_ids, start=1):
                delta, matched = self._stops.push(self._text_of((token,)))
                text += delta
                if matched is not None:
                    return text, count, matched
        if not last or self._is_flushed:
            return text, len(token_ids), None
        self._is_flushed = True
        delta, matched = self._flush()
        return text + delta, len(token_ids), matched

    def take(self, delta: str, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None:
        """Store the text, token ids and logprobs of an event."""
        self.text_parts.append(delta)
        self.output.token_ids.extend(token_ids)
        if self.output.token_logprobs is not None:
            self.output.token_logprobs.extend(logprobs)

    def end(self, reason: FinishReason, stop: str | int | None) -> None:
        """End the choice and set its text, finish reason and stop reason."""
        self.ended = True
        self.output.text = "".join(self.text_parts)
        self.output.finish_reason, self.output.stop_reason = reason, stop

    def stop_of(self, token_ids: tuple[int, ...]) -> int | None:
        """Return the last token if it is a stop token but not the model's end of sequence, else None."""
        token = token_ids[-1] if token_ids else self.output.token_ids[-1] if self.output.token_ids else None
        return token if token in self._stop_ids and token not in self._request.eos_token_ids else None

    def _resume(self, token_ids: tuple[int, ...]) -> None:
        """Add the tokens and text that were delivered before."""
        over = token_ids[-1] in self._stop_ids or len(token_ids) == self._request.params.max_tokens
        text, count, self.resumed_to_stop_string = self.add_tokens(token_ids, last=over)
        self.text_parts.append(text)
        self.output.token_ids.extend(token_ids[:count])
        self.pending_echo, self.delivered = "", text

    def _text_of(self, token_ids: tuple[int, ...]) -> str:
        """Return the certain text that more tokens add."""
        return self._detokenizer.push(token_ids) if self._detokenizer is not None and token_ids else ""

    def _flush(self) -> tuple[str, str | None]:
        """Return the held-back text at the end of the choice, and the stop string in it or None."""
        if self._detokenizer is None:
            return "", None
        text = self._detokenizer.finish()
        if self._stops is None:
            return text, None
        delta, matched = self._stops.push(text)
        return (delta, matched) if matched is not None else (delta + self._stops.flush(), None)
