"""batch_invariance, is_batch_invariant, refuse_deterministic: whether a request has the same tokens in any batch."""

from chairlift.core.errors import ConfigError
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.layers.causal_lm_protocol import TakesPlans


def is_batch_invariant(loaded: LoadedModel, *, deterministic: bool) -> bool:
    """Return whether a request has the same tokens in any batch; `deterministic` is the option.

    Of transformers' modules some may compute in torch although attention is native.
    """
    is_native = loaded.attention is not None and isinstance(loaded.model, TakesPlans)
    return is_native or deterministic or loaded.config.dtype == "float64"


def batch_invariance(loaded: LoadedModel, *, deterministic: bool) -> str:
    """Return the line of the startup report: whether a request has the same tokens in any batch, and what decides it.

    Args:
        loaded: the model; one with an attention of its own is run by the native kernels.
        deterministic: the option.
    """
    if loaded.attention is not None:
        return "yes, by the native kernels"
    if deterministic:
        return "yes, by the option deterministic"
    if loaded.config.dtype == "float64":
        return "yes, in float64"
    on_device = loaded.device.type == "cuda"
    cause = "the batch" if on_device else "the batch and on the number of threads, which other programs change"
    advice = "set deterministic" if on_device else "the native kernels and float64 round alike"
    return f"no: rounding may depend on {cause}, and a resumed stream may go on with other tokens; {advice}"


def refuse_deterministic(config: RunnerConfig, architecture: str) -> None:
    """Raise ConfigError for the option `deterministic` with a model that transformers' modules compute."""
    if config.deterministic:
        raise ConfigError(
            f"deterministic: {architecture} is computed by transformers' modules, whose products depend on the batch; "
            "leave it out, or choose one of Chairlift's own architectures", option="deterministic",
        )  # fmt: skip
