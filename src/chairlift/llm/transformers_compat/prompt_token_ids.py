"""plain_prompts, plain_ids: the token ids of inputs as lists, tensors or arrays."""

import operator
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

_TOKENIZE = "; a manager has no tokenizer, so pass tokenizer(text).input_ids"


def plain_prompts(inputs: Any) -> list[list[int]]:
    """Return the token ids of several prompts. Raises TypeError for what is not a sequence of prompts.

    The error of one of several prompts says which, as in "inputs[3]: ...".
    """
    prompts = inputs.tolist() if hasattr(inputs, "tolist") else inputs
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(f"inputs must be prompts, each a list of token ids, got {type(prompts).__name__}{_TOKENIZE}")
    made, many = [], list(prompts)
    for index, prompt in enumerate(many):
        place = f"inputs[{index}]: " if len(many) > 1 else ""
        if not isinstance(prompt, Iterable) or getattr(prompt, "shape", None) == ():
            raise TypeError(
                f"{place if index else ''}inputs must be prompts, each a list of token ids, got "
                f"{type(prompt).__name__}; a single prompt is [input_ids]"
            )
        try:
            made.append(plain_ids(prompt))
        except TypeError as error:
            raise TypeError(f"{place}{error}") from None
    return made


def plain_ids(input_ids: Any) -> list[int]:
    """Return token ids as a list. Raises TypeError for what is not a sequence of integers, or has several prompts."""
    ids = input_ids.tolist() if hasattr(input_ids, "tolist") else input_ids
    if isinstance(ids, str | bytes):
        raise TypeError(f"input_ids must be token ids, got the text {ids!r:.40}{_TOKENIZE}")
    if isinstance(ids, Mapping):
        raise TypeError(f'input_ids must be token ids, got {type(ids).__name__}; pass its "input_ids"')
    if not isinstance(ids, Iterable):
        raise TypeError(f"input_ids must be a list of token ids, got {type(ids).__name__}")
    ids = list(ids)
    if ids and all(isinstance(each, list | tuple) for each in ids):
        if len(ids) > 1:
            raise TypeError(
                f"input_ids must be the token ids of one prompt, got {len(ids)} prompts; pass them to add_requests() "
                "or generate_batch()"
            )
        ids = list(ids[0])  # a batch of one prompt
    return [token if type(token) is int else _plain_id(token) for token in ids]


def _plain_id(token: Any) -> int:
    """Return an integer of numpy or torch as an int. Raises TypeError for anything else."""
    if isinstance(token, str | bytes):
        raise TypeError(f"input_ids must be token ids, got the text {token!r:.40}{_TOKENIZE}")
    if not isinstance(token, bool):
        with suppress(TypeError, ValueError):
            return operator.index(token)
    raise TypeError(f"input_ids must be token ids, which are integers, got {type(token).__name__}")
