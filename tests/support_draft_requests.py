"""Random requests with every kind of sampling parameter, and the drafter and processor that check them.

draft_requests(rng, count)   requests of all kinds, each with its own seed
KnownOutputs                 what each request made, for a drafter that knows its output
OrderedProcessor             a logits processor with a state, which fails unless it is called once a position, in order
"""

import random
from collections.abc import Sequence as Items
from typing import Any

from torch import Tensor

from chairlift import SamplingParams, StructuredOutput
from chairlift.core.engine_output import TokenLogprob
from chairlift.core.structured_output import ReasoningPrefix
from chairlift.engine.sequence import Sequence
from chairlift.llm.outputs import RequestOutput

FACTORIES = {
    "ordered": "support_draft_requests:OrderedProcessor", "cold": "transformers:TemperatureLogitsWarper",
    "top": "transformers:TopKLogitsWarper",
}  # fmt: skip

STRUCTURES = (
    StructuredOutput(regex="[a-z]{3,9}( [a-z]{3,9}){2,4}"),
    StructuredOutput(choice=("a lift", "a chairlift", "a chair")),
    StructuredOutput(json_schema={
        "type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"enum": [1, 22, 333]}},
        "required": ["name", "age"], "additionalProperties": False,
    }),
    StructuredOutput(json_schema={"type": "array", "items": {"type": "integer"}, "maxItems": 9}),
    StructuredOutput(
        regex="[a-z]{4,9}( [a-z]{4,9}){2}", reasoning_prefix=ReasoningPrefix(ends=("q", "z"), is_open=True)
    ),
    StructuredOutput(
        json_schema={"type": "array", "items": {"enum": [1, "a", None]}, "maxItems": 6},
        reasoning_prefix=ReasoningPrefix(starts=("t",), ends=("e",)),
    ),
)  # fmt: skip


class OrderedProcessor:
    """Prefers a token that its own running sum names. Raises ValueError where a call is missing, repeated or late."""

    def __init__(self, weight: float = 2.0) -> None:
        self._weight, self._length, self._sum = weight, 0, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ids = input_ids[0]
        if self._length and len(ids) != self._length + 1:
            raise ValueError(f"called with {len(ids)} tokens after {self._length}")
        # Only the first call reads them all: a missing or rejected token would change all later ones.
        self._sum = self._sum + int(ids[-1]) if self._length else int(ids.sum())
        self._length = len(ids)
        if self._sum != int(ids.sum()):
            raise ValueError("the tokens before the last one have changed")
        changed = scores.clone()
        changed[0, (7 * self._sum + self._length) % 250] += self._weight
        return changed


def _parameters(rng: random.Random, kind: int) -> dict[str, Any]:
    """Return the fields of one kind of request."""
    match kind:
        case 0:
            return {"temperature": 0.0, "logprobs": rng.choice((None, 0, 4))}
        case 1:
            return {
                "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.8, "min_tokens": 5,
                "stop_token_ids": rng.sample(range(32, 127), 20), "temperature": rng.choice((0.0, 1.0)),
            }  # fmt: skip
        case 2:
            return {"stop": ["ab", "ccd", "dd", "b"], "temperature": 1.2, "allowed_token_ids": list(b"abcd"),
                    "include_stop_str_in_output": rng.random() < 0.5}  # fmt: skip
        case 3:
            return {"structured": rng.choice(STRUCTURES), "max_tokens": 90, "temperature": rng.choice((0.0, 1.1)),
                    "logprobs": rng.choice((None, 2))}  # fmt: skip
        case 4:
            return {"n": 3, "logprobs": rng.choice((None, 1)), "frequency_penalty": 0.5}
        case 5:
            return {"n": 2, "best_of": 4, "top_p": 0.9, "max_tokens": 12}
        case 6:
            return {"no_repeat_ngram_size": 2, "bad_words_ids": ((97,), (98, 99)), "typical_p": 0.9, "top_k": 40,
                    "temperature": rng.choice((0.0, 1.0))}  # fmt: skip
        case 7:
            return {"logits_processors": {"ordered": {"weight": rng.choice((1.0, 4.0))}, "cold": {"temperature": 0.8}},
                    "temperature": rng.choice((0.0, 1.0)), "logprobs": rng.choice((None, 1))}  # fmt: skip
        case 8:
            return {"prompt_logprobs": 2, "logprobs": 2, "temperature": rng.choice((0.0, 0.7)), "min_p": 0.05}
        case 9:
            return {"structured": rng.choice(STRUCTURES), "max_tokens": 90, "n": 2, "repetition_penalty": 1.1,
                    "logits_processors": {"ordered": {}}}  # fmt: skip
        case 10:
            return {"logit_bias": {97: 6.0, 98: 5.0, 99: -100.0}, "epsilon_cutoff": 0.002, "eta_cutoff": 0.01,
                    "temperature": 1.3, "stop": ["aaa"], "min_tokens": 3}  # fmt: skip
        case 11:  # FAILING_KIND: sooner or later no token is left
            return {"structured": rng.choice(STRUCTURES), "max_tokens": 90,
                    "logits_processors": {"ordered": {}, "top": {"top_k": 60}}}  # fmt: skip
        case _:
            return {"temperature": 0.0, "logit_bias": {97: 3.0}, "presence_penalty": 1.5, "min_tokens": 8}


NUM_KINDS = 13
FAILING_KIND = 11
"""The kind whose requests may end with an error."""


def draft_requests(rng: random.Random, count: int) -> list[tuple[str, SamplingParams]]:
    """Return (prompt, parameters) of `count` requests, of all kinds in turn; some prompts begin alike."""
    base = "".join(rng.choice("abcdef ghij") for _ in range(60))
    made = []
    for number in range(count):
        own = "".join(rng.choice("abcdef ghij") for _ in range(rng.randrange(1, 40)))
        prompt = (base[: rng.randrange(60)] if rng.random() < 0.5 else "") + own
        fields: dict[str, Any] = {
            "max_tokens": rng.randrange(1, 40),
            "seed": rng.getrandbits(60),
            "ignore_eos": rng.random() < 0.3,
        }
        fields |= _parameters(rng, number % NUM_KINDS)
        fields["min_tokens"] = min(fields.get("min_tokens", 0), fields["max_tokens"])
        made.append((prompt, SamplingParams(**fields)))
    return made


class KnownOutputs:
    """The tokens of each choice, by its prompt, its seed and its index."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int | None, int], list[int]] = {}

    def add(self, params: SamplingParams, result: RequestOutput) -> None:
        """Add what a request made without drafts."""
        for choice in result.outputs:
            self._tokens[params.seed, choice.index] = list(choice.token_ids)

    def of(self, sequence: Sequence) -> list[int]:
        """Return the output of a sequence; of a choice that best_of has left out, any tokens."""
        known = self._tokens.get((sequence.request.params.seed, sequence.choice_index))
        return list(range(97, 107)) if known is None else known


def shown_logprobs(entries: Items[TokenLogprob | None] | None, digits: int | None) -> Any:
    """Return logprobs with all bits, or rounded to some digits."""
    if entries is None or digits is None:
        return entries
    return [
        each and (each.token_id, round(each.logprob, digits), [(token, round(at, digits)) for token, at in each.top])
        for each in entries
    ]


def visible(result: RequestOutput, digits: int | None = None) -> Any:
    """Return everything that a user can see of a request, with the bits of logprobs or rounded to some digits."""
    return (
        result.prompt_token_ids, shown_logprobs(result.prompt_token_logprobs, digits), repr(result.error),
        result.usage.completion_tokens,
        [
            (
                each.index, each.text, each.token_ids, shown_logprobs(each.token_logprobs, digits), each.finish_reason,
                each.stop_reason,
            )
            for each in result.outputs
        ],
    )  # fmt: skip
