"""read_adapter: reads the folder of a LoRA adapter that PEFT has saved, for one model.

    base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight     in the file: [O, r] of the module
         │  canonical names, then the model's own order of rows (weights/arrangement.py)
    model.layers.0.self_attn.q_proj, k_proj, v_proj                      rows of B; A is that of the module

Every tensor must belong to a projection of the model, and every module that the config names must have its tensors.
Source: PEFT 0.21 (utils/save_and_load.py, tuners/lora/layer.py, tuners/lora/dora.py).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.model_folder import read_file
from chairlift.model.lora.adapter_weights import EMBEDDING, LM_HEAD, AdapterWeights, LowRank
from chairlift.model.lora.peft_config import CONFIG_FILE, PeftConfig, read_peft_config
from chairlift.model.weights.arrangement import arranged
from chairlift.model.weights.formats.safetensors import canonical_name
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import DenseOnly
from chairlift.model.weights.unused_tensors import shown_names

WEIGHTS_FILE, PICKLE_FILE = "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."

A, B, EMBEDDING_A, EMBEDDING_B, MAGNITUDE, WHOLE = "a", "b", "embedding_a", "embedding_b", "magnitude", "whole"
ENDINGS = (
    (".lora_A.weight", A), (".lora_B.weight", B), (".lora_embedding_A", EMBEDDING_A),
    (".lora_embedding_B", EMBEDDING_B), (".lora_magnitude_vector.weight", MAGNITUDE),
    (".lora_magnitude_vector", MAGNITUDE),
)  # fmt: skip
"""What follows the module's name in a tensor's name -> what the tensor is."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

BaseWeight = Callable[[str], Tensor]
"""Returns the weight [O, I] of a projection or the embedding table, in a dtype of at least float32.

Raises ModelError.
"""


@dataclass(frozen=True, slots=True)
class AdapterTargets:
    """The model that an adapter is read for.

    Attributes:
        config: of the decoder.
        projections: canonical name of each projection that an adapter may change -> O and I; the lm_head included.
        base_weight: reads the weight of a projection or of the embedding table.
    """

    config: DecoderConfig
    projections: Mapping[str, tuple[int, int]]
    base_weight: BaseWeight

    @property
    def modules(self) -> dict[str, str]:
        """The module of the architecture's files in which each projection is."""
        source_of = ARCHITECTURES[self.config.architecture].source
        sources = {name: source_of(self.config, f"{name}.weight") for name in self.projections}
        return {
            name: name if source is None else source.name.removesuffix(".weight") for name, source in sources.items()
        }


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter and a digest of its files, as hexadecimal digits."""

    weights: AdapterWeights
    digest: str


@dataclass(frozen=True, slots=True)
class _FileTensor(DenseOnly):
    """A StoredWeight of a tensor that is in memory: what arranged() takes rows of."""

    file: Path
    name: str
    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """See StoredWeight."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """See StoredWeight."""
        return str(self.tensor.dtype)

    @property
    def dense_dtype(self) -> str:
        """See StoredWeight."""
        return str(self.tensor.dtype).removeprefix("torch.")

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight."""
        return self.tensor if part is None else self.tensor[part]


def read_adapter(folder: Path, targets: AdapterTargets) -> ReadAdapter:
    """Read an adapter's folder.

    Raises ModelError, in one sentence, for a folder that is no adapter of PEFT, an adapter of another kind, a file that
    is damaged, and one whose tensors do not fit the model or the adapter's own config.
    """
    if not folder.is_dir():
        raise ModelError(f"there is no folder {folder}", file=str(folder))
    if not (folder / CONFIG_FILE).is_file() and (folder / "config.json").is_file():
        raise ModelError(f"{folder} is a model and no adapter: it has no {CONFIG_FILE}", file=str(folder))
    path, config_path = folder / WEIGHTS_FILE, folder / CONFIG_FILE
    # Read once: the digest is that of what is loaded, also while a trainer writes the files.
    content = read_file(config_path)
    config = read_peft_config(content, config_path)
    if not path.is_file() and (folder / PICKLE_FILE).is_file():
        raise ModelError(
            f"{folder} has {PICKLE_FILE}, a pickle, which can run any code; save the adapter with safetensors: "
            "load it in PEFT and call save_pretrained()", file=str(folder / PICKLE_FILE),
        )  # fmt: skip
    if config.is_transposed:
        raise ModelError(f"{CONFIG_FILE}: fan_in_fan_out is for models with transposed weights, and this one has none")
    numbers = read_file(path)
    by_kind = _read_tensors(numbers, path, targets.config.architecture)
    digest = sha256(len(content).to_bytes(8, "little") + content)
    digest.update(numbers)
    return ReadAdapter(_Reader(config, targets, path, by_kind).weights(), digest.hexdigest())


def _read_tensors(content: bytes, path: Path, architecture: str) -> dict[str, dict[str, _FileTensor]]:
    """Return the tensors of a file by what they are, and then by the canonical name of their module."""
    found: defaultdict[str, dict[str, _FileTensor]] = defaultdict(dict)
    try:
        tensors = load(content)
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{path} is truncated or not a safetensors file: {error}", file=str(path)) from error
    if not tensors:
        raise ModelError(f"{path} has no tensors", file=str(path))
    for name, tensor in tensors.items():
        if not name.isprintable():
            raise ModelError(f"{path} has a tensor whose name is not printable: {name!r}", file=str(path))
        module, kind = _module_of(name)
        canonical = canonical_name(f"{module}.weight", architecture)
        if tensor.dtype not in DTYPES:
            raise ModelError(f"tensor {name} in {path} has dtype {tensor.dtype}, which is none of LoRA", file=str(path))
        if canonical is None:
            raise ModelError(f"tensor {name} in {path} is of a part of the model that is not run", file=str(path))
        own = canonical.removesuffix(".weight")
        if own in found[kind]:
            raise ModelError(
                f"{path} has two tensors of one meaning: {found[kind][own].name} and {name}",
                file=str(path),
                tensor=name,
            )
        found[kind][own] = _FileTensor(path, name, tensor)
    return found


def _module_of(name: str) -> tuple[str, str]:
    """Return the module of a tensor, without PEFT's prefix, and what the tensor is."""
    short = name.removeprefix(PREFIX)
    for part in (".modules_to_save.default", ".modules_to_save", ".base_layer"):
        short = short.replace(f"{part}.", ".")
    if ".lora_" in short:
        short = short.removesuffix(".weight").removesuffix(".default") + ".weight" * short.endswith(".weight")
    for ending, kind in ENDINGS:
        if short.endswith(ending):
            return short.removesuffix(ending), kind
    return short.removesuffix(".weight"), WHOLE


class _Reader:
    """Makes the weights of one adapter of the tensors of its file."""

    def __init__(
        self, config: PeftConfig, targets: AdapterTargets, path: Path, by_kind: Mapping[str, dict[str, _FileTensor]]
    ) -> None:
        self._config, self._targets, self._path, self._by_kind = config, targets, path, by_kind
        self._modules = targets.modules

    def weights(self) -> AdapterWeights:
        """Return the weights. Raises ModelError."""
        self._check_names()
        parts, gains = self._rows(B), self._rows(MAGNITUDE)
        projections = {}
        for name, b in parts.items():
            module = self._modules[name]
            a = self._tensor(A, module)
            rank, scale = self._config.rank_of(module), self._config.scale_of(module)
            self._check_shape(A, module, a, (rank, self._targets.projections[name][1]))
            expected = self._targets.projections[name][0], rank
            if tuple(b.shape) != expected:
                raise self._misfit(self._by_kind[B][module].name, b, expected)
            projections[name] = self._with_gain(name, LowRank(a, b.contiguous(), scale), gains.get(name))
        return AdapterWeights(projections, self._embedding(), self._replaced())

    def _rows(self, kind: str) -> dict[str, Tensor]:
        """Return the rows of each projection, in the model's order, of the tensors of a kind."""
        stored = {f"{module}.weight": tensor for module, tensor in self._by_kind.get(kind, {}).items()}
        names = [f"{name}.weight" for name in self._targets.projections]
        found = arranged(stored, self._targets.config, names)
        return {name.removesuffix(".weight"): found[name].dense() for name in names if name in found}

    def _check_names(self) -> None:
        """Check that each tensor belongs to a module, and that the config and the file agree about the modules."""
        modules, own = set(self._modules.values()), self._by_kind
        allowed = {
            A: modules, B: modules, MAGNITUDE: modules, EMBEDDING_A: {EMBEDDING}, EMBEDDING_B: {EMBEDDING},
            WHOLE: {EMBEDDING, LM_HEAD},
        }  # fmt: skip
        wrong = [
            tensor.name for kind, tensors in own.items() for module, tensor in tensors.items()
            if module not in allowed[kind]
        ]  # fmt: skip
        if wrong:
            raise ModelError(
                f"{self._path} has tensors for modules that the model does not have, or whose adapters are not "
                f"supported: {shown_names(wrong)}", file=str(self._path), tensor=wrong[0],
            )  # fmt: skip
        given = own.get(B, {}).keys() | own.get(A, {}).keys() | own.get(MAGNITUDE, {}).keys()
        for module in given:
            self._tensor(A, module), self._tensor(B, module)
        named = {module for module in modules if self._config.targets(module, is_linear=True)}
        self._refuse("names modules of which the file has no tensors", named - given)
        self._refuse("does not name modules of which the file has tensors", given - named)
        has_table = bool(own.get(EMBEDDING_A) or own.get(EMBEDDING_B))
        if self._config.targets(EMBEDDING, is_linear=False) != has_table:
            self._refuse("and the file do not agree about the module", [EMBEDDING])
        saved = own.get(WHOLE, {}).keys()
        absent = {name for name in self._config.saved_modules if not any(each.split(".")[-1] == name for each in saved)}
        self._refuse("saves modules of which the file has no tensors, or which are not supported", absent)

    def _refuse(self, problem: str, modules: "Sequence[str] | set[str]") -> None:
        if modules:
            raise ModelError(f"{CONFIG_FILE} {problem}: {shown_names(sorted(modules))}", file=str(self._path))

    def _tensor(self, kind: str, module: str) -> Tensor:
        found = self._by_kind.get(kind, {}).get(module)
        if found is None:
            raise ModelError(f"{self._path} has no lora_{kind} of module {module}", file=str(self._path))
        return found.tensor

    def _check_shape(self, kind: str, module: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != expected:
            raise self._misfit(self._by_kind[kind][module].name, tensor, expected)

    def _misfit(self, name: str, tensor: Tensor, expected: tuple[int, ...]) -> ModelError:
        return ModelError(
            f"tensor {name} in {self._path} has shape {tuple(tensor.shape)}, the model and {CONFIG_FILE} require "
            f"{expected}", file=str(self._path), tensor=name,
        )  # fmt: skip

    def _with_gain(self, name: str, part: LowRank, magnitude: Tensor | None) -> LowRank:
        """Return a product with its gain, which only DoRA has."""
        if (magnitude is not None) != self._config.is_dora:
            problem = "has no magnitude" if magnitude is None else "has a magnitude, though use_dora is not set,"
            raise ModelError(f"{self._path} {problem} of module {name}", file=str(self._path))
        if magnitude is None:
            return part
        flat, outputs = magnitude.reshape(-1), self._targets.projections[name][0]
        if len(flat) != outputs:
            raise self._misfit(f"{name}.lora_magnitude_vector", magnitude, (outputs,))
        weight = self._targets.base_weight(name)
        update = part.b.to(weight.dtype) @ part.a.to(weight.dtype) * part.scale
        norms = torch.linalg.vector_norm(weight + update, dim=1)
        return LowRank(part.a, part.b, part.scale, flat.to(weight.dtype) / norms)

    def _embedding(self) -> LowRank | None:
        if not self._by_kind.get(EMBEDDING_A):
            return None
        if self._config.is_dora:
            raise ModelError(f"{CONFIG_FILE}: use_dora with an adapter of the embedding table is not supported")
        a, b = self._tensor(EMBEDDING_A, EMBEDDING), self._tensor(EMBEDDING_B, EMBEDDING)
        rank, config = self._config.rank_of(EMBEDDING), self._targets.config
        self._check_shape(EMBEDDING_A, EMBEDDING, a, (rank, config.vocab_size))
        self._check_shape(EMBEDDING_B, EMBEDDING, b, (config.hidden_size, rank))
        return LowRank(a, b, self._config.scale_of(EMBEDDING))

    def _replaced(self) -> dict[str, Tensor]:
        """Return the tables that are not those of the model: PEFT saves them with any adapter of such a module."""
        found, config = {}, self._targets.config
        for module, stored in self._by_kind.get(WHOLE, {}).items():
            self._check_shape(WHOLE, module, stored.tensor, (config.vocab_size, config.hidden_size))
            if not torch.equal(stored.tensor, self._targets.base_weight(module).to(stored.tensor.dtype)):
                found[module] = stored.tensor
        return found
