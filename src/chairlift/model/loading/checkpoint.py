"""Parameters by name: from safetensors files, mapped and checked against the architecture, or random ones.

    file name of a tensor                 name here
    model.layers.0...                     model.layers.0...     every family
    language_model.model.layers.0...      model.layers.0...     Gemma 3's wrapper as published and as saved
    model.language_model.layers.0...      model.layers.0...     Gemma 3's wrapper as its modules are called
    language_model.lm_head.weight         lm_head.weight
    vision_tower..., multi_modal_projector...   left out

Tensors are mapped, and copied one by one into what a family makes of them: there is never a second copy of the weights
beside the kernel's page cache, which it takes back at will. When the model is built nothing stays mapped.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.loading.model_config import ModelConfig, read_json
from chairlift.model.loading.parameter_loader import Take

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FLOATS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}

WRAPPER_PREFIXES = (
    ("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."), ("model.language_model.", "model."),
)  # fmt: skip
LEFT_OUT_PREFIXES = (
    "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
)  # fmt: skip
LEFT_OUT_SUFFIX = ".rotary_emb.inv_freq"  # a buffer that old Llama checkpoints carry


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: its file, its name in there, its shape and safetensors' name of its dtype."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


class Checkpoint:
    """The tensors of a model folder by the families' names.

    Attributes:
        tensors: what there is; vision weights are left out.
    """

    def __init__(self, tensors: dict[str, StoredTensor]) -> None:
        self.tensors = tensors
        self._files: dict[Path, Any] = {}

    @classmethod
    def open(cls, folder: Path, architecture: str) -> "Checkpoint":
        """Read the headers of model.safetensors, or of the files that its index names.

        Raises ModelError, with the file's name, for a missing, truncated or unreadable file, one that lacks a tensor
        of the index, one with a tensor that is not a float, and for two tensors of one name.
        """
        tensors: dict[str, StoredTensor] = {}
        for file, indexed in _files(folder).items():
            stored = _headers(file)
            absent = [name for name in indexed if name not in stored]
            if absent:
                raise ModelError(
                    f"{file} lacks tensor {_some(absent)}, which {INDEX_FILE} places there", file=str(file)
                )
            for tensor in stored.values():
                name = canonical_name(tensor.name, architecture)
                if name is None:
                    continue
                if name in tensors:
                    other = tensors[name]
                    raise ModelError(f"tensor {name} is in {other.file.name} ({other.name}) and in {file.name}")
                tensors[name] = tensor
        return cls(tensors)

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ModelError, with the tensor's name, unless names and shapes are exactly the expected ones."""
        missing = [name for name in expected if name not in self.tensors]
        if missing:
            raise ModelError(f"the checkpoint lacks tensor {_some(missing)}", tensor=missing[0], count=len(missing))
        surplus = [stored.name for name, stored in self.tensors.items() if name not in expected]
        if surplus:
            place = next(stored.file for stored in self.tensors.values() if stored.name == surplus[0])
            said = f"{place} has tensor {_some(surplus)}, which the architecture does not know"
            raise ModelError(said, file=str(place), tensor=surplus[0], count=len(surplus))
        for name, shape in expected.items():
            stored = self.tensors[name]
            if stored.shape != shape:
                said = f"tensor {stored.name} in {stored.file} has shape {stored.shape}, config.json asks for {shape}"
                raise ModelError(said, file=str(stored.file), tensor=stored.name)
            if stored.dtype not in FLOATS:
                said = f"tensor {stored.name} in {stored.file} is {stored.dtype}; supported are {', '.join(FLOATS)}"
                raise ModelError(said, file=str(stored.file), tensor=stored.name)

    def dtype(self) -> str:
        """Return the dtype of the embedding table, for a config.json that does not say."""
        return FLOATS.get(self.tensors[EMBEDDING].dtype, "float32") if EMBEDDING in self.tensors else "float32"

    def read(self, name: str) -> Tensor:
        """Return a tensor, mapped from its file, in its own dtype."""
        stored = self.tensors[name]
        if stored.file not in self._files:
            self._files[stored.file] = safe_open(stored.file, framework="pt")
        tensor: Tensor = self._files[stored.file].get_tensor(stored.name)
        return tensor

    def taker(self, dtype: torch.dtype, device: torch.device) -> Take:
        """Return a Take (take.py) that converts each tensor as it is asked for."""

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            tensor = self.read(name).to(device=device, dtype=dtype)
            assert tuple(tensor.shape) == shape, f"{name}: {tuple(tensor.shape)} against {shape}"
            return tensor

        return Take(read)

    def settle_tie(self, tied: bool) -> bool:
        """Return whether embedding and head are one tensor, as transformers 5 decides it when it loads.

        Where they are to be tied: a head in the file that equals the embedding is dropped; one that differs is a head
        of its own; a head without an embedding is both.
        """
        if not tied or HEAD not in self.tensors:
            return tied
        if EMBEDDING not in self.tensors:
            self.tensors[EMBEDDING] = self.tensors.pop(HEAD)
            return True
        first, second = self.tensors[EMBEDDING], self.tensors[HEAD]
        if (first.shape, first.dtype) != (second.shape, second.dtype):
            return False
        if not torch.equal(self.read(EMBEDDING), self.read(HEAD)):
            return False
        del self.tensors[HEAD]
        return True


def canonical_name(name: str, architecture: str) -> str | None:
    """Return the families' name of a tensor in a file; None for one that is left out."""
    if name.endswith(LEFT_OUT_SUFFIX):
        return None
    if architecture.startswith("Gemma3"):
        if name.startswith(LEFT_OUT_PREFIXES):
            return None
        for prefix, ours in WRAPPER_PREFIXES:
            if name.startswith(prefix):
                return ours + name.removeprefix(prefix)
    return name


def random_parameters(
    config: ModelConfig, seed: int, scale: float, change: Callable[[str, Tensor], Tensor] | None = None
) -> Callable[[torch.dtype, torch.device], Take]:
    """Return a maker of Takes with normal weights of standard deviation `scale`, and norms near one.

    A tensor depends on the seed, its name and its shape only; it is drawn in float32, so each dtype rounds the same.
    `change` may return another tensor for a name and what was drawn for it.
    """
    gemma = config.architecture.startswith("Gemma3")

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        drawn = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            return drawn * 0.1 + (0.0 if gemma else 1.0)
        drawn *= scale
        return drawn if change is None else change(name, drawn)

    def taker(dtype: torch.dtype, device: torch.device) -> Take:
        return Take(lambda name, shape: draw(name, shape).to(device=device, dtype=dtype))

    return taker


def fingerprint(folder: Path, computed: str) -> str:
    """Name the weights of a folder by its config and the names, sizes and times of its files, without reading them.

    `computed` says how they are computed with, as dtype and quantization do.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors*")):
        state = file.stat()
        digest.update(f"\n{file.name} {state.st_size} {state.st_mtime_ns}".encode())
    digest.update(f"\n{computed}".encode())
    return digest.hexdigest()


def _files(folder: Path) -> dict[Path, tuple[str, ...]]:
    """Return the folder's weight files, each with the tensors that the index places there."""
    if (folder / SINGLE_FILE).is_file():
        return {folder / SINGLE_FILE: ()}
    if not (folder / INDEX_FILE).is_file():
        others = sorted(path.name for path in folder.glob("*.bin"))
        said = f" (only safetensors is read, not {others[0]})" if others else ""
        raise ModelError(f"neither {SINGLE_FILE} nor {INDEX_FILE} in {folder}{said}", file=str(folder / SINGLE_FILE))
    places = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{folder / INDEX_FILE} has no weight_map", file=str(folder / INDEX_FILE))
    files: dict[Path, tuple[str, ...]] = {}
    for name, shard in places.items():
        if not isinstance(shard, str) or shard != Path(shard).name or not shard.endswith(".safetensors"):
            said = f"{folder / INDEX_FILE} places {name} in {shard!r}, which is no safetensors file of this folder"
            raise ModelError(said, file=str(folder / INDEX_FILE), tensor=name)
        files[folder / shard] = (*files.get(folder / shard, ()), name)
    for file in files:
        if not file.is_file():
            raise ModelError(f"no file {file.name} in {folder}, but {INDEX_FILE} names it", file=str(file))
    for file in sorted(folder.glob(SHARDS)):
        if file not in files:
            said = f"{file} is a shard that {INDEX_FILE} does not name; the folder mixes two checkpoints"
            raise ModelError(said, file=str(file))
    return files


def _headers(file: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  (it is no mapping)
            return {
                name: StoredTensor(file, name, tuple(part.get_shape()), part.get_dtype())
                for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is truncated or not a safetensors file: {error}", file=str(file)) from error


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"
