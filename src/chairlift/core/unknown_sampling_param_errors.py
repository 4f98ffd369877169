"""explain_unknown_names: what is said about a sampling parameter of vLLM that is not there."""

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

NOT_SUPPORTED: Mapping[str, str] = {
    "use_beam_search": "beam search is not implemented; best_of samples several choices and keeps the likeliest",
    "length_penalty": "beam search is not implemented; leave it out",
    "early_stopping": "beam search is not implemented; leave it out",
    "spaces_between_special_tokens": "spaces are those of the tokenizer's decoder; leave it out",
    "truncate_prompt_tokens": "prompts are not truncated; cut the token ids and pass them as the prompt",
    "guided_decoding": "use structured=StructuredOutput(...)",
    "extra_args": "no plugin reads them; leave it out",
    "flat_logprobs": "logprobs are a list of dicts; leave it out",
    "skip_reading_prefix_cache": "use cache_salt of the server, or LLM(enable_prefix_caching=False)",
}
"""Parameters of vLLM that SamplingParams lacks, with the reason or the nearest parameter."""


def explain_unknown_names(cls: type[T]) -> type[T]:
    """Decorate a dataclass so that its TypeError for an unknown name says what to use instead."""
    names = [spec.name for spec in dataclasses.fields(cls)]  # type: ignore[arg-type]
    construct = cls.__init__

    @functools.wraps(construct)
    def construct_or_explain(self: T, *args: Any, **values: Any) -> None:
        try:
            construct(self, *args, **values)
        except TypeError:
            for name in values.keys() - names:
                if name in NOT_SUPPORTED:
                    raise TypeError(f"{cls.__name__} has no {name}: {NOT_SUPPORTED[name]}") from None
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"available are {', '.join(names)}"
                raise TypeError(f"{cls.__name__} has no {name}; {hint}") from None
            raise

    cls.__init__ = construct_or_explain  # type: ignore[method-assign, assignment]
    return cls
