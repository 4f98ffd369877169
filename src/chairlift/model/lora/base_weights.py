"""base_weights: reads single weights of a model's folder again, for adapters that need the model's own numbers."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.lora.adapter_weights import EMBEDDING, LM_HEAD
from chairlift.model.lora.peft_adapter import BaseWeight
from chairlift.model.weights.checkpoint import Checkpoint


def base_weights(folder: Path | None, config: DecoderConfig, names: Iterable[str], dtype: torch.dtype) -> BaseWeight:
    """Return a reader of the weights of projections by canonical name, in a dtype.

    Args:
        folder: of the model, opened when the first weight is read; None for a model without files.
        config: of the decoder, with `tie_word_embeddings` as the checkpoint has it.
        names: the projections.
        dtype: at least float32.
    """
    opened: list[Checkpoint] = []
    parameters = [f"{name}.weight" for name in (*names, EMBEDDING)]

    def read(name: str) -> Tensor:
        if folder is None:
            raise ModelError("the adapter needs weights of the model, which has no files")
        if not opened:
            checkpoint = Checkpoint.open(folder, config.architecture)
            checkpoint.resolve_tied_embeddings(config.tie_word_embeddings)
            checkpoint.arrange(config, parameters)
            opened.append(checkpoint)
        source = EMBEDDING if name == LM_HEAD and config.tie_word_embeddings else name
        return opened[0].read(f"{source}.weight", dtype).to(dtype)

    return read
