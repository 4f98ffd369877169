"""Assembler: one request's ids become text, choice by choice, and add up to a RequestOutput.

engine's Output ──► its choice: text, stop strings ──► TextEvent        an error, an abort ends all choices at once
                                                   └─► with best_of: kept until all have ended, then the best n
"""

from dataclasses import replace

from chairlift.core.errors import ChairliftError, DetokenizeFailed
from chairlift.core.request import EngineOutput, FinishReason, GenerateRequest, Timeline, TokenLogprob, Usage
from chairlift.core.sampling import SamplingParams
from chairlift.llm.choice_state import Choice
from chairlift.llm.outputs import RequestOutput, TextEvent
from chairlift.text.tokenizer import Tokenizer


class Assembler:
    """Takes the engine's Outputs of one request in order.

    A stop string, or text that cannot be made, ends a choice here before the engine knows; `aborts` names it then, and
    what the engine still says of it is dropped.

    Attributes:
        request: as the engine has it.
        prompt: its text, if it was given as text.
        aborts: choices that the engine is to be told to end, also right after submission; the caller takes them out.
    """

    def __init__(
        self, request: GenerateRequest, prompt: str | None, tokenizer: Tokenizer | None,
        asked: SamplingParams | None = None,
    ) -> None:  # fmt: skip
        """Begin where the request resumes. `asked` are the caller's parameters where the engine has others.

        Raises DetokenizeFailed when no text can be made of the tokens to resume from, or of a prompt to echo.
        """
        self.request = request
        self.prompt = prompt
        self.aborts: list[int] = []
        self._asked = request.params if asked is None else asked
        self._prompt_logprobs: list[TokenLogprob] = []
        self._usage: Usage | None = None
        self._timeline: Timeline | None = None
        self._error: ChairliftError | None = None
        try:
            echo = _echo(request, prompt, tokenizer) if self._asked.echo else None
            self._choices = [Choice(request, index, tokenizer, echo) for index in range(request.params.num_choices)]
        except Exception as error:
            raise _typed(error) from error
        self.aborts += [choice.output.index for choice in self._choices if choice.resumed_to_stop_string]
        self._num_open = len(self._choices)

    def delivered(self, index: int) -> str:
        """Return the text of the tokens that a choice resumes from, which was said before."""
        return self._choices[index].delivered

    @property
    def is_finished(self) -> bool:
        """Whether the last event was made."""
        return self._usage is not None

    def take(self, output: EngineOutput) -> list[TextEvent]:
        """Turn news into events; none where what they are of has ended here already."""
        if self.is_finished:
            return []
        self._prompt_logprobs += output.prompt_logprobs
        self._timeline = output.timeline or self._timeline
        self._error = output.error or self._error  # of the whole request, also where this choice has ended
        events = self._of_choice(self._choices[output.choice_index], output)
        if events and output.prompt_logprobs:
            events[0] = replace(events[0], prompt_logprobs=output.prompt_logprobs)
        if output.is_final or self._error is not None:
            reason = FinishReason.ERROR if self._error is not None else output.finish_reason or FinishReason.ERROR
            events += [self._ended(choice, reason) for choice in self._choices if not choice.ended]
        if not self._num_open:
            return self._finish(events, output)
        return [] if self._is_ranked else events

    @property
    def _is_ranked(self) -> bool:
        return self._asked.num_choices > self._asked.n

    def _of_choice(self, choice: Choice, output: EngineOutput) -> list[TextEvent]:
        if choice.ended:
            return []
        if choice.resumed_to_stop_string is not None:
            return [self._ended(choice, FinishReason.STOP, choice.resumed_to_stop_string)]
        ends = output.finish_reason is not None
        try:
            delta, count, matched = choice.push(output.token_ids, last=ends)
        except Exception as error:
            self._error = _typed(error)
            self.aborts += [] if output.is_final else [each.output.index for each in self._choices if not each.ended]
            return [self._ended(choice, FinishReason.ERROR, None, "", output.token_ids, output.logprobs)]
        tokens, logprobs = output.token_ids[:count], output.logprobs[:count]
        if self._asked.is_prompt_logprobs_only:
            delta, tokens, logprobs, matched = "", (), (), None
        if matched is not None:
            self.aborts += [] if ends else [output.choice_index]
            return [self._ended(choice, FinishReason.STOP, matched, delta, tokens, logprobs)]
        if output.finish_reason is None:
            return [self._event(choice, delta, tokens, logprobs)]
        reason, stop = output.finish_reason, None
        if self._asked.is_prompt_logprobs_only and reason is FinishReason.STOP:
            reason = FinishReason.LENGTH
        elif reason is FinishReason.STOP:
            stop = choice.stop_of(tokens)
        return [self._ended(choice, reason, stop, delta, tokens, logprobs)]

    def _event(
        self, choice: Choice, delta: str, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> TextEvent:  # fmt: skip
        choice.take(delta, tokens, logprobs)
        unsaid, choice.unsaid = choice.unsaid, ""
        return TextEvent(
            self.request.request_id, unsaid + delta, tokens, logprobs, seed=choice.output.seed,
            index=choice.output.index,
        )  # fmt: skip

    def _ended(
        self, choice: Choice, reason: FinishReason, stop: str | int | None = None, delta: str = "",
        tokens: tuple[int, ...] = (), logprobs: tuple[TokenLogprob, ...] = (),
    ) -> TextEvent:  # fmt: skip
        """End a choice and make its last event."""
        event = self._event(choice, delta, tokens, logprobs)
        choice.end(reason, stop)
        self._num_open -= 1
        error = self._error if reason is FinishReason.ERROR else None
        return replace(event, finish_reason=reason, stop_reason=stop, error=error)

    def _finish(self, events: list[TextEvent], output: EngineOutput) -> list[TextEvent]:
        """All choices have ended: the last event says what the request took."""
        request, seen = self.request, sum(len(choice.output.token_ids) for choice in self._choices)
        if self._is_ranked:
            events = self._ranked()
        cached = 0 if output.usage is None else output.usage.cached_tokens
        self._usage = Usage(len(request.prompt_token_ids), seen, cached)
        return [*events[:-1], replace(events[-1], usage=self._usage, timeline=self._timeline)]

    def _ranked(self) -> list[TextEvent]:
        """Keep the n choices with the highest mean logprob, the best first, and make one event of each."""
        self._choices = sorted(self._choices, key=lambda choice: -choice.mean_logprob)[: self._asked.n]
        events = []
        for index, choice in enumerate(self._choices):
            made = choice.output
            made.index = index
            if self._error is not None:  # an error ends all choices
                made.finish_reason, made.stop_reason = FinishReason.ERROR, None
            made.logprobs = made.logprobs if self._asked.logprobs is not None else None
            events.append(TextEvent(
                self.request.request_id, made.text, tuple(made.token_ids), tuple(made.logprobs or ()),
                made.finish_reason, made.stop_reason,
                self._error if made.finish_reason is FinishReason.ERROR else None, seed=made.seed, index=index,
            ))  # fmt: skip
        return [replace(events[0], prompt_logprobs=tuple(self._prompt_logprobs)), *events[1:]]

    def result(self) -> RequestOutput:
        """Return the whole request; it must have ended."""
        assert self._usage is not None, "the request has not ended"
        has_scores = self._asked.prompt_logprobs is not None and not any(self.request.resume)
        scores = [None, *self._prompt_logprobs] if has_scores else None
        return RequestOutput(
            request_id=self.request.request_id, prompt=self.prompt, outputs=[choice.output for choice in self._choices],
            usage=self._usage, prompt_token_ids=list(self.request.prompt_token_ids), timeline=self._timeline,
            error=self._error, prompt_logprobs=scores,
        )  # fmt: skip


def _echo(request: GenerateRequest, prompt: str | None, tokenizer: Tokenizer | None) -> str:
    if prompt is not None or tokenizer is None:
        return prompt or ""
    return tokenizer.decode(request.prompt_token_ids, request.params.skip_special_tokens)


def _typed(error: Exception) -> ChairliftError:
    return error if isinstance(error, ChairliftError) else DetokenizeFailed(f"no text could be made: {error}")
