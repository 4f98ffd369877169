"""KernelVariant: the variant for a float8 cache is left out for GPUs that lack its instructions."""

import json

import pytest

from chairlift.model.kernels.cuda import compile_check, kernel_variant
from chairlift.model.kernels.cuda.compile_check import CompiledKernel
from chairlift.model.kernels.cuda.kernel_variant import KernelVariant


def test_a_variant_is_left_out_for_gpus_that_lack_its_instructions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = KernelVariant(name="plain", kernel=None, signature={"key_cache": "*bf16", "n": "i32"})
    float8 = kernel_variant.float8_cache(plain)
    assert float8.signature == {"key_cache": "*fp8e4nv", "value_cache": "*fp8e4nv", "n": "i32"}

    def compile_nothing(variant: KernelVariant, capability: int) -> CompiledKernel:
        return CompiledKernel(
            name=variant.name, capability=capability, num_registers=0, stack_bytes=0, shared_bytes=0, num_wgmma=0,
            num_mma=0, num_fma=0,
        )  # fmt: skip

    monkeypatch.setattr(compile_check, "all_variants", lambda: [plain, float8])
    monkeypatch.setattr(compile_check, "compile_kernel", compile_nothing)
    assert compile_check.main(["--capability", "80", "89", "90"]) == 0
    found = [(each["capability"], each["name"]) for each in map(json.loads, capsys.readouterr().out.splitlines())]
    assert found == [(80, "plain"), (89, "plain"), (90, "plain"), (89, float8.name), (90, float8.name)]
