"""Choice: one choice of a request becomes text as its tokens come, and ends at its stop strings."""

from math import inf

from chairlift.core.request import FinishReason, GenerateRequest, TokenLogprob
from chairlift.llm.outputs import CompletionOutput
from chairlift.text.detokenizer import Detokenizer
from chairlift.text.stop_strings import StopStrings
from chairlift.text.tokenizer import Tokenizer


class Choice:
    """Owns what is held back of its text. Everything but `output` belongs to the assembler.

    Attributes:
        output: what has come so far; its text is written at the end.
        said: text that is certain, in pieces.
        unsaid: what the first event has to say besides, the echoed prompt.
        delivered: text of the tokens that the request resumes from.
        ended: whether its last event was made.
        resumed_to_stop_string: the stop string with which it had ended before it was resumed.
    """

    def __init__(self, request: GenerateRequest, index: int, tokenizer: Tokenizer | None, echo: str | None) -> None:
        """Begin where the request resumes; with `echo` the text begins with that, the prompt's."""
        params = request.params
        self._request = request
        self._stop_ids = request.all_stop_token_ids
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        context = () if echo is None else request.prompt_token_ids
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, params.skip_special_tokens, context)
        logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self.output = CompletionOutput(index=index, seed=params.seed or 0, logprobs=logprobs)
        self._is_flushed = False
        self.said = [echo or ""]
        self.unsaid = echo or ""
        self.delivered = ""
        self.ended = False
        self.resumed_to_stop_string: str | None = None
        if resumed := request.resumed_tokens(index):
            self._resume(resumed)

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, as far as there are some."""
        logprobs = self.output.logprobs or []
        return sum(entry.logprob for entry in logprobs) / len(logprobs) if logprobs else -inf

    def push(self, token_ids: tuple[int, ...], *, last: bool) -> tuple[str, int, str | None]:
        """Take tokens; `last` says that the engine ends the choice with them.

        Returns the text that is certain now, how many tokens it took, and the stop string that ended it with the last
        of these, if one did. Raises what the tokenizer raises.
        """
        stops = last and bool(token_ids) and token_ids[-1] in self._stop_ids
        told = token_ids[:-1] if stops else token_ids  # a token that stops the request has no text
        if self._stops is None:
            text = self._text_of(told)
        else:
            text = ""
            for count, token in enumerate(told, start=1):
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
        """Keep what became of some tokens."""
        self.said.append(delta)
        self.output.token_ids.extend(token_ids)
        if self.output.logprobs is not None:
            self.output.logprobs.extend(logprobs)

    def end(self, reason: FinishReason, stop: str | int | None) -> None:
        """It is over."""
        self.ended = True
        self.output.text = "".join(self.said)
        self.output.finish_reason, self.output.stop_reason = reason, stop

    def stop_of(self, token_ids: tuple[int, ...]) -> int | None:
        """Return the stop token that the last of these is, unless it is the model's own end of sequence."""
        token = token_ids[-1] if token_ids else self.output.token_ids[-1] if self.output.token_ids else None
        return token if token in self._stop_ids and token not in self._request.eos_token_ids else None

    def _resume(self, token_ids: tuple[int, ...]) -> None:
        """Take in what was delivered before, its text too."""
        over = token_ids[-1] in self._stop_ids or len(token_ids) == self._request.params.max_tokens
        text, count, self.resumed_to_stop_string = self.push(token_ids, last=over)
        self.said.append(text)
        self.output.token_ids.extend(token_ids[:count])
        self.unsaid, self.delivered = "", text

    def _text_of(self, token_ids: tuple[int, ...]) -> str:
        """What more tokens add to the text, as far as it is certain."""
        return self._detokenizer.push(token_ids) if self._detokenizer is not None and token_ids else ""

    def _flush(self) -> tuple[str, str | None]:
        """What was held back, now that nothing follows."""
        if self._detokenizer is None:
            return "", None
        text = self._detokenizer.finish()
        if self._stops is None:
            return text, None
        delta, matched = self._stops.push(text)
        return (delta, matched) if matched is not None else (delta + self._stops.flush(), None)
