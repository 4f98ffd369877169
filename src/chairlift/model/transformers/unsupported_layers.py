"""unsupported, not_causal, is_not_causal: errors of models whose layers cannot use a KV cache."""

from chairlift.core.errors import UnsupportedArchitecture


def unsupported(reason: str) -> UnsupportedArchitecture:
    """Return the error for a model whose layers do not fit; `details["reason"]` is the reason alone."""
    return UnsupportedArchitecture(
        f"this model cannot run on a paged KV cache: {reason}", reason=reason,
        remedy="use a model whose layers all have causal attention",
    )  # fmt: skip


def not_causal() -> UnsupportedArchitecture:
    """Return the error for a model whose tokens attend to later ones: no cache of earlier tokens can be right."""
    return UnsupportedArchitecture(
        "the tokens of this model attend to later tokens, which no KV cache has; it is not causal",
        remedy="use a model that predicts the next token", is_causal=False,
    )  # fmt: skip


def is_not_causal(error: UnsupportedArchitecture) -> bool:
    """Return whether an error is one of not_causal()."""
    return error.details.get("is_causal") is False
