"""OutputProcessor: turns the token ids of one request into text events and a RequestOutput.

EngineOutput ──► ChoiceState: text, stop strings ──► TextEvent        an error or an abort ends all choices at once
                                                 └─► with best_of: kept until all have ended, then the best n
"""

from dataclasses import replace

from chairlift.core.engine_output import EngineOutput, FinishReason, TokenLogprob, Usage
from chairlift.core.errors import ChairliftError, DetokenizeFailed
from chairlift.core.request import GenerateRequest
from chairlift.core.request_timeline import Timeline
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.request_validation import ValidatedRequest
from chairlift.llm.choice_state import ChoiceState
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.text_event import TextEvent
from chairlift.text.reasoning_formats import ReasoningState
from chairlift.text.stop_strings import StopStringAutomaton
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tokenizer import Tokenizer


class OutputProcessor:
    """Processes the engine's outputs of one request in order.

    A stop string or a detokenization error ends a choice here before the engine ends it; `pending_aborts` then names
    the choice, and further outputs of it are dropped.

    Attributes:
        validated: the request as submitted to the engine.
        request: the same without its limits.
        prompt: the prompt's text, None when it came as ids.
        reasoning_state: where the output of a chat request begins.
        has_logprobs: whether the client asked for logprobs.
        token_pieces: the text of single tokens, None without a tokenizer.
        pending_aborts: choices to abort in the engine, also right after submission; the caller clears the list.
    """

    def __init__(
        self, validated: ValidatedRequest, prompt: str | None, tokenizer: Tokenizer | None,
        user_params: SamplingParams | None = None,
    ) -> None:  # fmt: skip
        """Start after the resumed tokens.

        `user_params` are the client's parameters if the engine's differ.

        Raises DetokenizeFailed when the resumed tokens, or a prompt to echo, cannot be decoded.
        """
        self.validated = validated
        self.request = request = validated.request
        self.prompt = prompt
        self.reasoning_state = ReasoningState.ENDED
        self.pending_aborts: list[int] = []
        self._user_params = request.params if user_params is None else user_params
        self.has_logprobs = self._user_params.logprobs is not None
        self.token_pieces = None if tokenizer is None else TokenPieces(tokenizer)
        self._prompt_logprobs: list[TokenLogprob] = []
        self._num_reported_prompt_logprobs = [0] * request.params.num_choices
        self._usage: Usage | None = None
        self._timeline: Timeline | None = None
        self._error: ChairliftError | None = None
        self._embedding = b""
        try:
            echo = _echo(request, prompt, tokenizer) if self._user_params.echo else None
            stops = StopStringAutomaton(request.params.stop) if request.params.stop else None
            self._choices = [
                ChoiceState(request, index, tokenizer, echo, stops) for index in range(request.params.num_choices)
            ]
        except Exception as error:
            raise _as_request_error(error) from error
        self.pending_aborts += [choice.output.index for choice in self._choices if choice.resumed_to_stop_string]
        self._num_open = len(self._choices)

    def resumed_text(self, index: int) -> str:
        """Return the text of the tokens that a choice resumes from."""
        return self._choices[index].delivered

    @property
    def is_finished(self) -> bool:
        """Whether the final event was final."""
        return self._usage is not None

    @property
    def timeline(self) -> Timeline | None:
        """The engine's times, as of its last output that had any."""
        return self._timeline

    def process(self, output: EngineOutput) -> list[TextEvent]:
        """Turn an output into events; none for a choice or request that has already ended here."""
        if self.is_finished:
            return []
        self._prompt_logprobs += output.prompt_logprobs
        self._embedding = output.embedding or self._embedding
        self._timeline = output.timeline or self._timeline
        self._error = output.error or self._error  # belongs to the whole request, even when this choice has ended
        events = self._of_choice(self._choices[output.choice_index], output)
        if events and self._prompt_logprobs:
            events[0] = self._with_prompt_logprobs(events[0])
        if output.is_final or self._error is not None:
            reason = FinishReason.ERROR if self._error is not None else output.finish_reason or FinishReason.ERROR
            events += [self._ended(choice, reason) for choice in self._choices if not choice.ended]
        if not self._num_open:
            return self._finish(events, output)
        return [] if self._is_ranked else events

    def _with_prompt_logprobs(self, event: TextEvent) -> TextEvent:
        """Return an event with the prompt's logprobs that its choice has not reported; each choice reports all."""
        num_reported = self._num_reported_prompt_logprobs[event.index]
        self._num_reported_prompt_logprobs[event.index] = len(self._prompt_logprobs)
        if num_reported == len(self._prompt_logprobs):
            return event
        return replace(event, prompt_logprobs=tuple(self._prompt_logprobs[num_reported:]))

    @property
    def _is_ranked(self) -> bool:
        return self._user_params.num_choices > self._user_params.n

    def _of_choice(self, choice: ChoiceState, output: EngineOutput) -> list[TextEvent]:
        if choice.ended:
            return []
        if choice.resumed_to_stop_string is not None:
            return [self._ended(choice, FinishReason.STOP, choice.resumed_to_stop_string)]
        ends = output.finish_reason is not None
        flushes = ends and output.finish_reason is not FinishReason.ERROR  # after an error the request may be resumed
        try:
            delta, count, matched = choice.add_tokens(output.token_ids, last=flushes)
        except Exception as error:
            self._error = _as_request_error(error)
            self.pending_aborts += (
                [] if output.is_final else [each.output.index for each in self._choices if not each.ended]
            )
            return [self._ended(choice, FinishReason.ERROR, None, "", output.token_ids, output.logprobs)]
        tokens, logprobs = output.token_ids[:count], output.logprobs[:count]
        if self._user_params.is_prompt_logprobs_only:
            delta, tokens, logprobs, matched = "", (), (), None
        if matched is not None:
            self.pending_aborts += [] if ends else [output.choice_index]
            return [self._ended(choice, FinishReason.STOP, matched, delta, tokens, logprobs)]
        if output.finish_reason is None:
            return [self._event(choice, delta, tokens, logprobs)]
        reason, stop = output.finish_reason, None
        if self._user_params.is_prompt_logprobs_only and reason is FinishReason.STOP:
            reason = FinishReason.LENGTH
        elif reason is FinishReason.STOP:
            stop = choice.stop_of(tokens)
        return [self._ended(choice, reason, stop, delta, tokens, logprobs)]

    def _event(
        self, choice: ChoiceState, delta: str, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> TextEvent:  # fmt: skip
        choice.take(delta, tokens, logprobs)
        pending_echo, choice.pending_echo = choice.pending_echo, ""
        return TextEvent(
            self.request.request_id, pending_echo + delta, tokens, logprobs, seed=choice.output.seed,
            index=choice.output.index,
        )  # fmt: skip

    def _ended(
        self, choice: ChoiceState, reason: FinishReason, stop: str | int | None = None, delta: str = "",
        tokens: tuple[int, ...] = (), logprobs: tuple[TokenLogprob, ...] = (),
    ) -> TextEvent:  # fmt: skip
        """End a choice and make its last event."""
        event = self._event(choice, delta, tokens, logprobs)
        choice.end(reason, stop)
        self._num_open -= 1
        error = self._error if reason is FinishReason.ERROR else None
        return replace(event, finish_reason=reason, stop_reason=stop, error=error)

    def _finish(self, events: list[TextEvent], output: EngineOutput) -> list[TextEvent]:
        """Complete the final event with usage and timeline, after all choices have ended."""
        request, num_output_tokens = self.request, sum(len(choice.output.token_ids) for choice in self._choices)
        if self._is_ranked:
            events = self._ranked()
        usage = output.usage or Usage(0, 0, 0)
        self._usage = replace(usage, prompt_tokens=len(request.prompt_token_ids), completion_tokens=num_output_tokens)
        return [*events[:-1], replace(events[-1], usage=self._usage, timeline=self._timeline)]

    def _ranked(self) -> list[TextEvent]:
        """Keep the n choices with the highest mean logprob, best first, and return one event for each."""
        self._choices = sorted(self._choices, key=lambda choice: -choice.mean_logprob)[: self._user_params.n]
        events = []
        for index, choice in enumerate(self._choices):
            final = choice.output
            final.index = index
            if self._error is not None:  # an error ends all choices
                final.finish_reason, final.stop_reason = FinishReason.ERROR, None
            final.token_logprobs = final.token_logprobs if self._user_params.logprobs is not None else None
            events.append(TextEvent(
                self.request.request_id, final.text, tuple(final.token_ids), tuple(final.token_logprobs or ()),
                final.finish_reason, final.stop_reason,
                self._error if final.finish_reason is FinishReason.ERROR else None, seed=final.seed, index=index,
            ))  # fmt: skip
        return [replace(event, prompt_logprobs=tuple(self._prompt_logprobs)) for event in events]

    def result(self) -> RequestOutput:
        """Return the whole request; it must have ended."""
        assert self._usage is not None, "the request has not ended"
        for choice in self._choices:
            choice.output.token_pieces = self.token_pieces
        resumed = (self.request.resumed_tokens(index) for index in range(self.request.params.num_choices))
        has_prompt_logprobs = self._user_params.prompt_logprobs is not None and not all(resumed)
        prompt_logprobs = [None, *self._prompt_logprobs] if has_prompt_logprobs else None
        return RequestOutput(
            request_id=self.request.request_id, prompt=self.prompt, outputs=[choice.output for choice in self._choices],
            usage=self._usage, prompt_token_ids=list(self.request.prompt_token_ids), timeline=self._timeline,
            error=self._error, prompt_token_logprobs=prompt_logprobs, token_pieces=self.token_pieces,
            embedding=self._embedding,
        )  # fmt: skip


def _echo(request: GenerateRequest, prompt: str | None, tokenizer: Tokenizer | None) -> str:
    if prompt is not None or tokenizer is None:
        return prompt or ""
    return tokenizer.decode(request.prompt_token_ids, request.params.skip_special_tokens)


def _as_request_error(error: Exception) -> ChairliftError:
    return error if isinstance(error, ChairliftError) else DetokenizeFailed(f"no text could be made: {error}")
