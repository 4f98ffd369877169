"""read_pooling: how a model folder says that embeddings are made, in a file of sentence-transformers.

1_Pooling/config.json    pooling_mode, or a flag pooling_mode_* for each mode
"""

from collections.abc import Mapping
from pathlib import Path

from chairlift.core.errors import ModelError
from chairlift.model.config.model_folder import read_json

_MODES: Mapping[str, str] = {
    "pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max", "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip
"""Flags of a pooling configuration -> the mode."""

_NAMES: Mapping[str, str] = {"lasttoken": "last", "mean": "mean"}


def read_pooling(folder: Path) -> str | None:
    """Return the pooling of a model folder; None if it names none. It may be one that is not supported.

    Raises ModelError that names the file, if it is not a JSON object or names several modes.
    """
    path = folder / "1_Pooling" / "config.json"
    if not path.exists():
        return None
    content = read_json(path)
    if isinstance(mode := content.get("pooling_mode"), str):
        return _NAMES.get(mode, mode)
    modes = [name for flag, name in _MODES.items() if content.get(flag) is True]
    if len(modes) > 1:
        raise ModelError(f"{path} has the pooling modes {', '.join(modes)}, one is supported", file=str(path))
    return modes[0] if modes else None
