"""check_weights: whether the files of a model folder's weights are there and whole. Imports no torch."""

from pathlib import Path

from chairlift.model.config.gguf_file import read_gguf
from chairlift.model.config.gguf_folder import gguf_file_of
from chairlift.model.config.model_folder import check_weight_file, weight_files


def check_weights(folder: Path) -> None:
    """Read the headers of a folder's weights, in any format.

    Raises ModelError for a missing, truncated or invalid file, UnsupportedModel for weights in another format.
    """
    if (file := gguf_file_of(folder)) is not None:
        read_gguf(file)
        return
    for file in weight_files(folder):
        check_weight_file(file)
