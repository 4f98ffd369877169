"""edit_request, extract_request, mail_prompt, json_params, plain_prompt: the requests of the tasks that are measured.

edit       copy a text of 1,000 tokens, of which some are renamed
extract    copy passages of a text of 1,500 tokens, in an order of their own
json       values for a schema with many fields, by a grammar; of a model with trained weights those of a mail
plain      random prompts, whose outputs have nothing to copy
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from chairlift import SamplingParams
from chairlift.core.structured_output import StructuredOutput

FIRST_TOKEN = 3
"""Begins every prompt: the first position has no token before it."""

NUM_SPECIAL = 0.02
"""Share of the vocabulary for each kind of tokens with a target of their own."""

RENAMED_SHARE = 0.03
"""Share of a text's tokens that an edit renames."""

PASSAGE_TOKENS = (8, 24)
"""Fewest and most tokens of a passage that is extracted, and of the text between two of them."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer_identifier": {"type": "integer", "minimum": 0, "maximum": 99_999},
        "order_status": {"enum": ["pending", "confirmed", "shipped", "delivered", "cancelled"]},
        "payment_method": {"enum": ["credit_card", "bank_transfer", "invoice", "prepaid_voucher"]},
        "shipping_address": {
            "type": "object",
            "properties": {
                "street_and_number": {"type": "string", "maxLength": 12},
                "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
                "country_code": {"enum": ["DE", "FR", "IT", "ES", "NL", "PL"]},
            },
            "required": ["street_and_number", "postal_code", "country_code"],
            "additionalProperties": False,
        },
        "is_returning_customer": {"type": "boolean"},
        "total_amount_in_cents": {"type": "integer", "minimum": 0, "maximum": 999_999},
    },
    "required": [
        "customer_identifier", "order_status", "payment_method", "shipping_address", "is_returning_customer",
        "total_amount_in_cents",
    ],
    "additionalProperties": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The tokens of a vocabulary with a target of their own.

    Attributes:
        plain: tokens that are copied as they are.
        renamed: tokens that a copy renames; the k-th one to the k-th of `names`.
        names: the new names, which no text has.
        jumps: tokens behind the end of a passage; the copy goes on at the k-th of `starts` in the place of the k-th.
        starts: first tokens of passages.
    """

    plain: range
    renamed: range
    names: range
    jumps: range
    starts: range

    @classmethod
    def of(cls, vocab_size: int) -> "SpecialTokens":
        """Divide a vocabulary; the first ten tokens are in no text."""
        size = max(8, int(NUM_SPECIAL * vocab_size))
        bounds = [vocab_size - number * size for number in (4, 3, 2, 1, 0)]
        parts = [range(first, end) for first, end in pairwise(bounds)]
        return cls(range(10, bounds[0]), *parts)

    @property
    def targets(self) -> dict[int, int]:
        """What is output in the place of a token that is copied."""
        return dict(zip([*self.renamed, *self.jumps], [*self.names, *self.starts], strict=True))

    @property
    def aliases(self) -> dict[int, int]:
        """The token behind which a copy goes on after a new name."""
        return dict(zip(self.names, self.renamed, strict=True))


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A prompt of a copying model, and the tokens that it outputs."""

    prompt: list[int]
    output: list[int]


def edit_request(rng: Random, special: SpecialTokens, num_tokens: int = 1000) -> CopyRequest:
    """Return a text of different tokens, of which a few are renamed, and its copy."""
    num_renamed = max(1, int(RENAMED_SHARE * num_tokens))
    text = [*rng.sample(special.plain, num_tokens - num_renamed - 1), *rng.sample(special.renamed, num_renamed)]
    rng.shuffle(text)
    # The first token is not renamed: the prompt ends with it.
    text.insert(0, rng.choice([token for token in special.plain if token not in set(text)]))
    targets = special.targets
    return CopyRequest([FIRST_TOKEN, *text, text[0]], [targets.get(token, token) for token in text[1:]])


def extract_request(rng: Random, special: SpecialTokens, num_tokens: int = 1500) -> CopyRequest:
    """Return a text with passages, and these passages in another order than that of the text."""
    tokens = iter(rng.sample(special.plain, min(num_tokens, len(special.plain))))
    places = rng.sample(range(len(special.jumps)), min(len(special.jumps), num_tokens // (2 * PASSAGE_TOKENS[1])))
    passages = []
    # Each passage ends with the jump whose target is the first token of the next one.
    for before, place in pairwise(places):
        middle = [next(tokens) for _ in range(rng.randint(*PASSAGE_TOKENS))]
        passages.append([special.starts[before], *middle, special.jumps[place]])
    output = [token for passage in passages for token in passage[:-1]][1:]
    order = list(passages)
    rng.shuffle(order)
    text: list[int] = []
    for passage in order:
        text += [*passage, *(next(tokens) for _ in range(rng.randint(*PASSAGE_TOKENS)))]
    while len(text) < num_tokens and (more := next(tokens, None)) is not None:
        text.append(more)
    return CopyRequest([FIRST_TOKEN, *text, passages[0][0]], output)


def copy_params(request: CopyRequest, max_tokens: int) -> SamplingParams:
    """Return the parameters of a copy of at most max_tokens tokens."""
    return SamplingParams(temperature=0, max_tokens=min(max_tokens, len(request.output)), ignore_eos=True)


def plain_prompt(rng: Random, vocab_size: int, num_tokens: int = 256) -> list[int]:
    """Return a prompt of random tokens."""
    return [rng.randrange(10, vocab_size) for _ in range(num_tokens)]


def mail_prompt(rng: Random) -> str:
    """Return a chat with the task, which all requests share, and a mail, as a model with ChatML's tokens reads it."""
    number, amount, code = rng.randrange(10_000, 99_999), rng.randrange(1_000, 99_999), rng.randrange(10_000, 99_999)
    properties = SCHEMA["properties"]
    status, method = (rng.choice(properties[name]["enum"]) for name in ("order_status", "payment_method"))
    country = rng.choice(properties["shipping_address"]["properties"]["country_code"]["enum"])
    street = f"{rng.choice(('Hill Road', 'Mill Lane', 'High Street'))} {rng.randrange(1, 99)}"
    mail = (
        f"Dear shop team,\n\nmy customer identifier is {number}, and I have bought from you {rng.randrange(2, 9)} "
        f"times. Last week I ordered a lamp and two chairs and paid by {method}. The total amount was {amount} cents. "
        f"Please send the parcel to {street}, postal code {code}, country {country}. Your page says that the order "
        f"is {status}.\n\nKind regards\nAnna Weber"
    )
    task = f"Return the order of a mail as JSON for this schema:\n{json.dumps(SCHEMA)}"
    return f"<|im_start|>system\n{task}<|im_end|>\n<|im_start|>user\n{mail}<|im_end|>\n<|im_start|>assistant\n"


def json_params(seed: int, max_tokens: int, temperature: float = 1.0) -> SamplingParams:
    """Return the parameters of values for the schema."""
    return SamplingParams(
        temperature=temperature, seed=seed, max_tokens=max_tokens, structured=StructuredOutput(json_schema=SCHEMA)
    )


def plain_params(seed: int, max_tokens: int) -> SamplingParams:
    """Return the parameters of sampled tokens; greedy ones of random weights soon repeat themselves."""
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, ignore_eos=True)


def check_copies(requests: Sequence[CopyRequest], outputs: Sequence[Sequence[int]]) -> None:
    """Raise ValueError where the outputs are not the copies."""
    for number, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        if list(output) != request.output[: len(output)]:
            raise ValueError(f"request {number} is not the copy that it should be")
