"""Assembler: one request's ids become text, end at its stop strings, and add up to a RequestOutput."""

from chairlift.core.errors import ChairliftError, DetokenizeFailed
from chairlift.core.request import FinishReason, GenerateRequest, Output, Usage
from chairlift.llm.output import CompletionOutput, RequestOutput, TextEvent
from chairlift.text.detokenizer import Detokenizer
from chairlift.text.stop import StopStrings
from chairlift.text.tokenizer import Tokenizer


class Assembler:
    """Takes the engine's Outputs of one request in order.

    A stop string, or text that cannot be made, ends the request here before the engine knows; `must_abort` is then true
    and what the engine still says is dropped.
    """

    def __init__(self, request: GenerateRequest, prompt: str | None, tokenizer: Tokenizer | None) -> None:
        params = request.params
        self.request = request
        self.prompt = prompt
        self.must_abort = False
        self._stop_ids = frozenset(request.eos_token_ids).union(params.stop_token_ids)
        self._seed = params.seed or 0
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, params.skip_special_tokens)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        self._text: list[str] = []
        self._choice = CompletionOutput(seed=self._seed, logprobs=None if params.logprobs is None else [])
        self._last: TextEvent | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the last event was made."""
        return self._last is not None

    def take(self, output: Output) -> TextEvent | None:
        """Turn news into an event; None when the request has ended here already."""
        if self._last is not None:
            return None
        try:
            event = self._event(output)
        except Exception as error:
            cause = error if isinstance(error, ChairliftError) else DetokenizeFailed(f"no text could be made: {error}")
            event = self._ended(output, "", output.token_ids, FinishReason.ERROR, error=cause)
        self._text.append(event.delta)
        self._choice.token_ids.extend(event.token_ids)
        if self._choice.logprobs is not None:
            self._choice.logprobs.extend(event.logprobs)
        if event.finish_reason is not None:
            self._last = event
            self.must_abort = output.finish_reason is None
        return event

    def _event(self, output: Output) -> TextEvent:
        text = ""
        for count, token in enumerate(output.token_ids, start=1):
            delta, matched = self._push(token, last=output.finish_reason is not None and count == len(output.token_ids))
            text += delta
            if matched is not None:
                return self._ended(output, text, output.token_ids[:count], FinishReason.STOP, stop=matched)
        if output.finish_reason is None:
            return TextEvent(output.request_id, text, output.token_ids, output.logprobs, seed=self._seed)
        delta, matched = self._flush()
        reason, stop = output.finish_reason, matched
        if matched is not None:
            reason = FinishReason.STOP
        elif reason is FinishReason.STOP and output.token_ids and output.token_ids[-1] in self._stop_ids:
            stop_id = output.token_ids[-1]
            eos = stop_id in self.request.eos_token_ids
            return self._ended(output, text + delta, output.token_ids, reason, stop=None if eos else stop_id)
        return self._ended(output, text + delta, output.token_ids, reason, stop=stop, error=output.error)

    def _push(self, token: int, *, last: bool) -> tuple[str, str | None]:
        """Text of one more token; a token that stops the request has none."""
        if self._detokenizer is None or (last and token in self._stop_ids):
            return "", None
        text = self._detokenizer.push((token,))
        return (text, None) if self._stops is None else self._stops.push(text)

    def _flush(self) -> tuple[str, str | None]:
        """What was held back, now that nothing follows."""
        if self._detokenizer is None:
            return "", None
        text = self._detokenizer.finish()
        if self._stops is None:
            return text, None
        delta, matched = self._stops.push(text)
        return (delta, matched) if matched is not None else (delta + self._stops.flush(), None)

    def _ended(
        self, output: Output, delta: str, token_ids: tuple[int, ...], reason: FinishReason, *,
        stop: str | int | None = None, error: ChairliftError | None = None,
    ) -> TextEvent:  # fmt: skip
        seen = len(self._choice.token_ids) + len(token_ids)
        known = output.usage or Usage(len(self.request.prompt_token_ids), seen, 0)
        usage = Usage(known.prompt_tokens, seen, known.cached_tokens)
        return TextEvent(
            output.request_id, delta, token_ids, output.logprobs[: len(token_ids)], reason, stop, error, usage,
            output.timeline, self._seed,
        )  # fmt: skip

    def result(self) -> RequestOutput:
        """Return the whole request; it must have ended."""
        last, choice = self._last, self._choice
        assert last is not None, "the request has not ended"
        assert last.usage is not None
        choice.text = "".join(self._text)
        choice.finish_reason, choice.stop_reason = last.finish_reason, last.stop_reason
        return RequestOutput(
            request_id=self.request.request_id, prompt=self.prompt, outputs=[choice], usage=last.usage,
            prompt_token_ids=list(self.request.prompt_token_ids), timeline=last.timeline, error=last.error,
        )  # fmt: skip
