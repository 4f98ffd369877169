"""arranged: a decoder's parameters from what its checkpoint stores: joined ones apart, rows in the model's order."""

from collections.abc import Iterable, Mapping, Sequence

from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.decoder_config import HEAD, DecoderConfig
from chairlift.model.config.rope_config import RopeConfig
from chairlift.model.weights.stored_rows import StoredRows
from chairlift.model.weights.stored_weight import StoredWeight, damaged, stored_twice

ROTATED = ("self_attn.q_proj", "self_attn.k_proj")
"""Modules whose rows are heads that rotate."""

HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
"""Modules whose weight is for one head that rotates, where heads are normalised one by one."""


def arranged(
    stored: Mapping[str, StoredWeight], config: DecoderConfig, names: Iterable[str]
) -> dict[str, StoredWeight]:  # fmt: skip
    """Return weights by the names of a decoder's parameters; those that are no parameters stay as they are.

    Args:
        stored: weights by canonical name.
        config: what the decoder is like.
        names: canonical names of its parameters.

    Tensors that the architecture has in files without using them are left out.

    Raises ModelError for a joined tensor that has other rows than its parts, or one beside its parts.
    """
    architecture = ARCHITECTURES[config.architecture]
    source_of, is_unused, parts = architecture.source, architecture.is_unused, dict[str, int]()
    found = {name: each for name, each in stored.items() if is_unused is None or not is_unused(config, name)}
    parameters = frozenset(names)
    for name in parameters:
        source = source_of(config, name)
        if source is not None and (whole := stored.get(source.name)) is not None:
            if source.name != name and name in stored:
                raise stored_twice(name, whole, stored[name])
            parts[source.name] = parts.get(source.name, 0) + (0 if source.rows is None else len(source.rows))
            found[name] = whole if source.rows is None else StoredRows(whole, source.rows)
    for name, num_rows in parts.items():
        shape = stored[name].shape
        if num_rows and shape[:1] != (num_rows,):
            raise damaged(stored[name], f"has shape {shape}, config.json requires {num_rows} rows")
    ropes, places = config.layer_ropes, config.attention_places
    for name in parameters & found.keys():
        if (order := _rotated_rows(name, config, ropes, places, found[name].shape)) is not None:
            found[name] = _ordered(found[name], order)
    return {name: weight for name, weight in found.items() if name not in parts or name in parameters}


def _ordered(weight: StoredWeight, order: Sequence[int]) -> StoredRows:
    if isinstance(weight, StoredRows):
        return StoredRows(weight.whole, [weight.rows[row] for row in order])
    return StoredRows(weight, order)


def _rotated_rows(
    name: str, config: DecoderConfig, ropes: Sequence[RopeConfig | None], places: Sequence[int | None],
    shape: tuple[int, ...],
) -> list[int] | None:  # fmt: skip
    """Return the rows of a parameter in the order of the model; None where it is that of the checkpoint."""
    parts = name.split(".")
    module = ".".join(parts[-3:-1])
    if module not in ROTATED and not (module in HEAD_NORMS and config.head_norm == HEAD):
        return None
    rope, place = ropes[int(parts[2])], places[int(parts[2])]
    if rope is None or place is None:
        return None
    head_dim = config.attention_shape_of(place).head_dim
    if (order := rope.row_order(head_dim)) is None:
        return None
    if not shape or shape[0] % head_dim:
        return None  # a wrong shape, which Checkpoint.check refuses
    return [first + element for first in range(0, shape[0], head_dim) for element in order]
