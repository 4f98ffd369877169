"""compile_kernel: compiles a Triton kernel for a GPU that need not be there, and reports the resources that it takes.

Command: `python -m chairlift.model.kernels.cuda.compile_check [--capability 90 ..] [--part 0 2]` compiles every
variant of every kernel, or one of several parts of them, and prints a line of JSON for each. A module of kernels
names the variants in use by a function `variants`.
"""

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS, KernelVariant

CAPABILITIES = (80, 90, 100)
"""Compute capabilities, times ten, of the GPUs that kernels are compiled for: Ampere, Hopper, Blackwell."""

KERNEL_MODULES = (
    "attention_variants_to_compile", "float8_kernels", "int4_kernels", "layer_kernels", "batch_invariant_linear_kernel",
    "sampling_kernels", "input_kernels", "expert_kernels", "expert_int4_kernels", "state_kernels",
)  # fmt: skip
"""Modules of this package that have kernels."""

WARP_THREADS = 32
POINTER_ALIGNMENT = 16
"""Bytes that Triton finds every address of a fresh tensor to be a multiple of, which allows wide loads."""


_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """The resources of a compiled variant.

    Attributes:
        name: the variant's name.
        capability: compute capability times ten.
        num_registers: registers of a thread.
        stack_bytes: memory of a thread for values that found no register; 0 where nothing is spilled.
        shared_bytes: shared memory of a block of threads.
        num_wgmma: instructions that multiply tiles of a whole warp group (Hopper).
        num_mma: other instructions that multiply tiles.
        num_fma: products of float32 whose sum is not rounded on its own.
    """

    name: str
    capability: int
    num_registers: int
    stack_bytes: int
    shared_bytes: int
    num_wgmma: int
    num_mma: int
    num_fma: int


def compile_kernel(variant: KernelVariant, capability: int) -> CompiledKernel:
    """Compile a variant, with pointers that are aligned as those of torch's tensors are, where a launch looks at that.

    Raises triton's CompilationError, and RuntimeError if the binary cannot be read.
    """
    aligned = [["tt.divisibility", POINTER_ALIGNMENT]]
    source = ASTSource(
        fn=variant.kernel, signature=dict(variant.signature), constexprs=dict(variant.constants),
        attrs={
            (param.num,): aligned for param in variant.kernel.params
            if param.name in variant.multiples_of_16
            or (variant.signature[param.name].startswith("*") and not param.do_not_specialize_on_alignment)
        },
    )  # fmt: skip
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages, **LAUNCH_OPTIONS}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, WARP_THREADS), options=options)
    ptx, (registers, stack) = str(compiled.asm["ptx"]), _resources(compiled.asm["cubin"])
    return CompiledKernel(
        name=variant.name, capability=capability, num_registers=registers, stack_bytes=stack,
        shared_bytes=int(compiled.metadata.shared), num_wgmma=ptx.count("wgmma.mma_async"),
        num_mma=ptx.count("mma.sync") + ptx.count("tcgen05.mma"), num_fma=ptx.count("fma.rn.f32"),
    )  # fmt: skip


def all_variants() -> list[KernelVariant]:
    """Return the variants of all kernels."""
    modules = (importlib.import_module(f"{__package__}.{name}") for name in KERNEL_MODULES)
    return [variant for module in modules for variant in module.variants()]


def _resources(binary: bytes) -> tuple[int, int]:
    """Return registers and bytes of stack, as the disassembler in triton's package says."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        found = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=False)
    match = _RESOURCES.search(found.stdout)
    if match is None:
        raise RuntimeError(f"cuobjdump reports no resources: {found.stdout}{found.stderr}")
    return int(match[1]), int(match[2])


def _lines(capabilities: Sequence[int], part: int, num_parts: int) -> Iterator[str]:
    for variant in all_variants()[part::num_parts]:
        for capability in capabilities:
            if capability < variant.min_capability:
                continue
            needs = {"needs_tensor_cores": variant.needs_tensor_cores, "max_fma": variant.max_fma}
            yield json.dumps(asdict(compile_kernel(variant, capability)) | needs)


def main(words: Sequence[str]) -> int:
    """Compile all variants and print their resources. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="compile_check", description=__doc__)
    parser.add_argument(
        "--capability", type=int, nargs="+", default=CAPABILITIES, help="compute capabilities times ten"
    )
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="which of how many parts of the variants")
    options = parser.parse_args(words)
    for line in _lines(options.capability, *options.part):
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
