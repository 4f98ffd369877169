"""ModelFacts: what people want to know of a loaded model, and no decision depends on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about the weights; an empty text and 0 are unknown.

    Attributes:
        architecture: name of the architecture in the model's config.
        dtype: dtype of the weights as loaded, before a quantization.
        quantization: of the weights in memory, "" for none.
        num_parameters: number of parameters; tied ones count once.
        weight_bytes: memory of the weights.
    """

    architecture: str = ""
    dtype: str = ""
    quantization: str = ""
    num_parameters: int = 0
    weight_bytes: int = 0
