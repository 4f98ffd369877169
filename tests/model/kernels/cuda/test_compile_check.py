"""Every kernel compiles for GPUs that are not here, spills no register, and multiplies tiles where it must."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from support_shares import FULL

COMPILE_SECONDS = 600
NUM_PARTS = {80: 6, 90: 6, 100: 6} if FULL else {90: 60}
PARTS = [
    (capability, part, num_parts) for capability, num_parts in NUM_PARTS.items()
    for part in range(num_parts if FULL else 1)
]  # fmt: skip
"""Parts of the variants: a few of them in `make test`, all in `make test-compile`, which CI runs too."""

SHARED_BYTES = {80: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Most shared memory of a program; consumer GPUs run the code of Ampere and have the least of it."""

VARYING = """
    import json
    from chairlift.model.kernels.cuda.compile_check import all_variants

    for kernel in {variant.kernel.fn.__name__: variant.kernel for variant in all_variants()}.values():
        by_value = [each.name for each in kernel.params if not (each.is_constexpr or each.do_not_specialize)]
        by_alignment = [each.name for each in kernel.params if not each.do_not_specialize_on_alignment]
        print(json.dumps({"name": kernel.fn.__name__, "by_value": by_value, "by_alignment": by_alignment}))
"""
COUNTS = {
    "begin", "first_row", "ids_begin", "mapping_stride", "max_splits", "min_tiles", "num_blocks", "num_rows",
    "num_splits", "num_tokens", "padded_tokens", "stride_table", "table_group_stride", "table_stride", "window",
}  # fmt: skip
VIEWS = {"bitmask", "block_table", "cu_seqlens", "mask_rows", "seq_lens", "slot_mapping", "slots"}
WHOLE = {"_build_inputs": VIEWS, "recurrence_kernel": VIEWS, "partial_chunk_kernel": VIEWS}
"""Kernels whose tensors are always whole ones."""

SCALE = """
    import sys, json
    from dataclasses import asdict
    import triton, triton.language as tl
    from chairlift.model.kernels.cuda.kernel_variant import KernelVariant
    from chairlift.model.kernels.cuda.compile_check import compile_kernel

    @triton.jit
    def scale(x, y, n, SIZE: tl.constexpr):
        i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

    @triton.jit
    def square(x, y, SIZE: tl.constexpr):
        i = tl.arange(0, SIZE)
        tile = tl.load(x + i[:, None] * SIZE + i[None, :])
        tl.store(y + i[:, None] * SIZE + i[None, :], tl.dot(tile, tile))

    kinds = {
        "scale": (scale, {"x": "*bf16", "y": "*bf16", "n": "i32", "SIZE": "constexpr"}, 128),
        "square": (square, {"x": "*bf16", "y": "*fp32", "SIZE": "constexpr"}, 64),
        "huge": (square, {"x": "*bf16", "y": "*fp32", "SIZE": "constexpr"}, 256),
    }
    for name, (kernel, signature, size) in kinds.items():
        variant = KernelVariant(name=name, kernel=kernel, signature=signature, constants={"SIZE": size})
        print(json.dumps(asdict(compile_kernel(variant, 90))))
"""

CONVERSIONS = """
    import json, re, sys
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from chairlift.model.kernels.cuda import attention_variants_to_compile, float8_kernels
    from chairlift.model.kernels.cuda.kernel_variant import float8_cache

    float8 = ("write_kv bf16 head_dim 64", "decode bf16 head_dim 64 block 16 group 4")
    for each in [*attention_variants_to_compile.variants(), *float8_kernels.variants()]:
        if each.name in ("quantize_rows 1024", *float8):
            each = float8_cache(each) if each.name in float8 else each
            source = ASTSource(fn=each.kernel, signature=dict(each.signature), constexprs=dict(each.constants))
            options = {"num_warps": each.num_warps, "num_stages": each.num_stages}
            ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
            print(json.dumps(re.findall(r"(?:cvt|min|max)\\.[\\w.]*(?:e4m3|NaN)[\\w.]*", ptx)))
"""


def compiled(*words: str) -> list[Any]:
    """Run Python without Triton's interpreter and return the lines of JSON that it prints."""
    environ = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, *words], env=environ, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.full
def test_resources_are_read_from_the_binary(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(textwrap.dedent(SCALE))
    scale, square, huge = compiled(str(tmp_path / "kernels.py"))
    assert scale["stack_bytes"] == 0 and 0 < scale["num_registers"] < 64 and not scale["num_wgmma"]
    assert square["num_wgmma"] > 0 and square["shared_bytes"] > 0
    assert huge["stack_bytes"] > 0  # its sums do not fit into registers


@pytest.mark.full
def test_the_gpu_rounds_8_bit_floats_to_nearest_within_their_limits_and_keeps_nan(tmp_path: Path) -> None:
    """Triton's interpreter does not: it truncates some numbers and makes 384 of NaN."""
    (tmp_path / "conversions.py").write_text(textwrap.dedent(CONVERSIONS))
    read, write, rows = map(set, compiled(str(tmp_path / "conversions.py")))
    assert "cvt.rn.satfinite.e4m3x2.f32" in rows and any(each.startswith("min.NaN") for each in rows)
    assert read == {"cvt.rn.f16x2.e4m3x2"}
    assert "cvt.rn.satfinite.e4m3x2.f32" in write and any(each.startswith("min.NaN") for each in write)


@pytest.mark.timeout(COMPILE_SECONDS + 60)
@pytest.mark.parametrize(("capability", "part", "num_parts"), PARTS)
def test_every_kernel_compiles_without_spilling(capability: int, part: int, num_parts: int) -> None:
    words = ["--capability", str(capability), "--part", str(part), str(num_parts)]
    found = compiled("-m", "chairlift.model.kernels.cuda.compile_check", *words)
    assert found
    for each in found:
        assert each["stack_bytes"] == 0, each
        assert each["num_fma"] <= each["max_fma"], each  # or the bits of a token would depend on which loop reads a key
        assert each["shared_bytes"] <= SHARED_BYTES[each["capability"]], each
        if each["needs_tensor_cores"]:
            assert each["num_wgmma"] if each["capability"] == 90 else each["num_mma"], each


@pytest.mark.full
def test_what_changes_from_step_to_step_makes_no_new_variant(tmp_path: Path) -> None:
    (tmp_path / "varying.py").write_text(textwrap.dedent(VARYING))
    kernels = {each["name"]: each for each in compiled(str(tmp_path / "varying.py"))}
    assert len(kernels) == 24
    for name, each in kernels.items():
        assert COUNTS.isdisjoint(each["by_value"]), name
        assert (VIEWS - WHOLE.get(name, set())).isdisjoint(each["by_alignment"]), name
