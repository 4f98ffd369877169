"""ModuleKernels: what computes the linear layers, attention and lm_head of a model that transformers' modules run.

ModuleKernels        torch: only norms are replaced, which share their weights
PackedModuleKernels  torch on a CPU, with weights packed for oneDNN
NativeModuleKernels  the native kernels: linear layers, attention, lm_head and sampling
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.backends.native_backend import NativeBackend, check_attention_fit
from chairlift.model.backends.native_linear_and_norm import NativeLinear
from chairlift.model.backends.native_lm_head import NativeHead
from chairlift.model.config.attention_backend_names import AUTO
from chairlift.model.config.runner_config import UNQUANTIZED, RunnerConfig
from chairlift.model.device.dtypes import NATIVE_COMPUTE_DTYPES, torch_dtype
from chairlift.model.layers.ops import Ops
from chairlift.model.layers.select_ops import ops_for
from chairlift.model.sampling.sampling_ops import SamplingOps, TorchSamplingOps
from chairlift.model.transformers.linear_layers_with_shared_input import find_shared_inputs
from chairlift.model.transformers.module_probing import are_close, sample_rows
from chairlift.model.transformers.replace_modules import LayerMaker, Replaced, replace_modules
from chairlift.model.transformers.replacement_modules import Multiply, PackedLinear

MAX_TORCH_SHARE = 0.2
"""Share of the parameters that torch may multiply with in one thread, beside the threads of the native kernels."""


class ModuleKernels:
    """Kernels of torch.

    Attributes:
        is_plain: whether linear layers stay as they are.
        chunk_tokens, cpus: see RunnerInfo.
        torch_threads: see ModelBackend.
    """

    is_plain = True
    chunk_tokens: int | None = None
    cpus: tuple[int, ...] = ()
    torch_threads: int | None = None

    def __init__(self) -> None:
        self._replaced = Replaced()

    def compute_dtype(self, dtype: str) -> str:
        """Return the dtype to load a model in, and to compute in, whose weights are of `dtype`."""
        return dtype

    def replace_in(self, model: nn.Module, run: Callable[[], object]) -> None:
        """Replace modules of a model by faster ones; `run` runs the model once."""
        maker = self._maker()
        self._replaced = replace_modules(model, maker, [] if maker is None else find_shared_inputs(model, run))

    def _maker(self) -> LayerMaker | None:
        """Return what makes the faster modules; None for norms of torch alone."""
        return None

    def padded_size(self, num_tokens: int) -> int:
        """Return the padded number of tokens of a step."""
        return num_tokens

    def attention(self, head_dim: int, block_size: int) -> Callable[[], AttentionBackend] | None:
        """Return a factory of the attention backend; None for that of the options."""
        return None

    def head(
        self, module: nn.Module | None, softcaps: Iterable[float | None], logits: Callable[[Tensor], Tensor]
    ) -> NativeHead | None:
        """Return a faster head if it computes what `logits` does; None if there is none.

        Args:
            module: the output layer of the model.
            softcaps: soft caps that its head may have.
            logits: computes logits [R, V] of hidden states [R, H] as the model does.
        """
        return None

    def sampling_ops(self) -> SamplingOps:
        """Return the operations that sample tokens."""
        return TorchSamplingOps()

    def report(self) -> tuple[tuple[str, str], ...]:
        """Return (name, value) pairs of the startup report."""
        return (("kernels", f"torch; replaced modules: {self._replaced}"),)


class PackedModuleKernels(ModuleKernels):
    """Kernels of torch with the weights of linear layers in the layout of `ops`."""

    is_plain = False

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self._ops = ops

    def padded_size(self, num_tokens: int) -> int:
        """See ModuleKernels."""
        return self._ops.padded_size(num_tokens)

    def _maker(self) -> LayerMaker:
        return OpsLayerMaker(self._ops)


class OpsLayerMaker:
    """A LayerMaker over Ops."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def linear(self, _: str, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Multiply:
        """See LayerMaker."""
        ops, packed = self._ops, self._ops.pack(weight)

        def multiply(x: Tensor) -> Tensor:
            rows = ops.linear(x.reshape(-1, x.shape[-1]), packed, bias)
            if activation is not None:
                gate, up = rows.chunk(2, -1)
                rows = ops.gated_activation(gate, up, activation)
            return rows.view(*x.shape[:-1], rows.shape[-1])

        return multiply

    def rms_norm(self, factors: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
        """See LayerMaker."""
        return lambda x: self._ops.rms_norm_float32(x, factors, eps)


class NativeModuleKernels(ModuleKernels):
    """The native kernels of a CPU, in bfloat16 or float32."""

    is_plain = False

    def __init__(self, backend: NativeBackend) -> None:
        super().__init__()
        self._backend = backend
        self.chunk_tokens = backend.chunk_tokens
        self.cpus = backend.cpus
        self.torch_threads = backend.torch_threads

    def compute_dtype(self, dtype: str) -> str:
        """See ModuleKernels."""
        return self._backend.compute_dtype(dtype)

    def replace_in(self, model: nn.Module, run: Callable[[], object]) -> None:
        """See ModuleKernels. If much is left to torch, such as experts, torch has its own number of threads, too."""
        total = sum(parameter.numel() for parameter in model.parameters())
        super().replace_in(model, run)
        tables = (module.weight for module in model.modules() if isinstance(module, nn.Embedding))
        left = sum(parameter.numel() for parameter in model.parameters()) - sum(table.numel() for table in tables)
        if left > MAX_TORCH_SHARE * total:
            self.torch_threads = None

    def _maker(self) -> LayerMaker:
        return self._backend

    def attention(self, head_dim: int, block_size: int) -> Callable[[], AttentionBackend] | None:
        """See ModuleKernels."""
        try:
            check_attention_fit(head_dim, block_size)
        except ConfigError:
            return None
        return self._backend.attention()

    def head(
        self, module: nn.Module | None, softcaps: Iterable[float | None], logits: Callable[[Tensor], Tensor]
    ) -> NativeHead | None:
        """See ModuleKernels."""
        if (
            not isinstance(module, PackedLinear)
            or not isinstance(linear := module.multiply, NativeLinear)
            or linear.has_bias
        ):
            return None
        hidden = sample_rows(module.in_features, self._backend.dtype, torch.device("cpu"))
        expected = logits(hidden)
        for softcap in softcaps:
            head = self._backend.head(linear.weight, module.out_features, softcap)
            if are_close(head.logits(hidden).to(expected.dtype), expected):
                return head
        return None

    def sampling_ops(self) -> SamplingOps:
        """See ModuleKernels."""
        return self._backend.sampling_ops()

    def report(self) -> tuple[tuple[str, str], ...]:
        """See ModuleKernels."""
        return (*self._backend.report(), ("replaced modules", str(self._replaced)))


def choose_kernels(config: RunnerConfig, dtype: str, device: torch.device) -> ModuleKernels:
    """Return the fastest kernels by the options for weights of a dtype in DTYPES.

    Raises ConfigError if native ones are required and cannot run.
    """
    required = config.kernels == "native" or config.quantization not in UNQUANTIZED
    if config.kernels != "torch" and config.attention_backend == config.kv_cache_dtype == AUTO:
        if device.type == "cpu" and dtype in NATIVE_COMPUTE_DTYPES:
            try:
                return NativeModuleKernels(NativeBackend(config.quantization, config.cpu_threads, dtype=dtype))
            except ConfigError:
                if required:
                    raise
        elif required:
            raise ConfigError(
                f"the native kernels run on the CPU in bfloat16 and float32, not on {device} in {dtype}",
                option="kernels",
            )
    ops: Any = ops_for(torch_dtype(dtype), device)
    return PackedModuleKernels(ops) if getattr(ops, "packs", False) else ModuleKernels()
