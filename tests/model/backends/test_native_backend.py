"""NativeBackend: check_fit, the startup report, busy processors and torch's threads."""

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.model.backends.decoder_program import linears
from chairlift.model.backends.native_backend import NativeBackend, check_fit
from chairlift.model.backends.native_sampling import NativeSamplingOps
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.layer_groups import AttentionShape
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import PackedWeight
from chairlift.model.loading.model_building import random_model
from chairlift.model.loading.tiny_model import tiny_config, tiny_model
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.sampling.sampling_ops import TorchSamplingOps
from support_architectures import config_of
from support_native import need_native
from support_shares import for_each

CPU = torch.device("cpu")
FIT = replace(tiny_config(), dtype="bfloat16")
SHAPE = AttentionShape(2, 16)


@for_each(
    ("config", "device", "block_size", "reason"),
    [
        (replace(FIT, dtype="float64"), CPU, 16, "bfloat16 and float32, not in float64"),
        (FIT, torch.device("meta"), 16, "not on meta"),
        (FIT, CPU, 8, "block_size must be a multiple of 16, not 8"),
        (replace(FIT, head_dim=24), CPU, 16, "head_dim .* not 24"),
        (replace(FIT, head_dim=528), CPU, 16, "head_dim .* not 528"),
        (replace(FIT, layer_shapes=(SHAPE, AttentionShape(2, 24))), CPU, 16, "head_dim .* not 24"),
        (replace(FIT, activation="relu"), CPU, 16, "not support the activation relu"),
    ],
)
def test_what_does_not_fit_is_said(config: DecoderConfig, device: torch.device, block_size: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        check_fit(config, device, block_size)
    assert caught.value.details["option"] == "kernels"


def test_what_fits_runs_and_says_how() -> None:
    need_native()
    check_fit(FIT, CPU, 32)
    model_backend = NativeBackend("int8", 2)
    tiny_model(seed=1, dtype="bfloat16", device=CPU, choose_backend=lambda _: model_backend)
    report = dict(model_backend.report())
    assert model_backend.instruction_set in report["kernels"] and "threads: 2" in report["kernels"]
    assert re.search(r"; \d+ GMAC/s a thread, \d+% of what its instructions can do$", report["kernels"])
    assert report["quantization"].startswith("int8, largest error 0.") and "model.layers." in report["quantization"]
    assert "quantization" not in dict(NativeBackend().report())
    assert dict(NativeBackend(dtype="float16").report())["kernels"].count("weights: float16") == 1


def test_it_keeps_those_processors_busy_that_its_threads_stay_on_or_all_where_there_are_too_few() -> None:
    need_native()
    usable = usable_cpus()
    assert set(NativeBackend(threads=1).cpus) < usable or len(usable) == 1
    assert set(NativeBackend(threads=len(usable) + 1).cpus) == usable


@pytest.mark.parametrize(
    ("dtype", "kind"), [("bfloat16", NativeSamplingOps), ("float32", NativeSamplingOps), ("float64", TorchSamplingOps)]
)
def test_tokens_and_scores_are_drawn_by_who_runs_the_model(dtype: str, kind: type) -> None:
    need_native()
    runner = TorchRunner(RunnerConfig(model="", dtype=dtype, device="cpu", num_blocks=16, max_running_requests=2))
    runner.start()
    try:
        engine = runner._engine
        assert engine is not None
        assert type(engine.sampler._sampling_ops) is kind and type(engine.prompt_logprobs._sampling_ops) is kind
    finally:
        runner.stop()


@pytest.mark.parametrize(("dtype", "threads"), [("bfloat16", 1), ("float16", 1), ("float64", 3)])
def test_torch_has_one_thread_beside_the_kernels_and_elsewhere_what_it_had(dtype: str, threads: int) -> None:
    """Torch's threads spin after an operation, on the processors of the kernels' pool."""
    need_native()
    before, seen = torch.get_num_threads(), []
    runner = TorchRunner(RunnerConfig(model="", dtype=dtype, device="cpu", num_blocks=16, max_running_requests=2))

    def engine() -> None:
        runner.start()
        seen.append(torch.get_num_threads())
        runner.stop()

    torch.set_num_threads(3)
    try:
        thread = threading.Thread(target=engine)
        thread.start()
        thread.join()
        assert seen == [threads] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_numbers_that_do_not_fit_their_codes_are_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    need_native()
    backend = NativeBackend("int4", 1)
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    backend.linear("small", weight, None)
    backend.report()
    assert not caplog.records
    backend.linear("huge", weight * 2.0**30, None)
    backend.report()
    assert [record.getMessage().partition(" by ")[0] for record in caplog.records] == ["int4 changes huge"]


def test_with_4_bits_the_head_has_6_and_both_are_kept_in_one_file(tmp_path: Path) -> None:
    need_native()
    found = []
    for _ in range(2):
        backend = NativeBackend("int4", 1, tmp_path / "a.packed")
        model, _ = tiny_model(seed=1, dtype="bfloat16", device=CPU, choose_backend=lambda _, own=backend: own)
        parts = model._parts  # type: ignore[attr-defined]
        kinds = {linear.weight.struct.kind for linear in linears(parts)}
        assert (kinds, parts.head.struct.kind) == ({library.INT4_GROUP}, library.INT6_GROUP)
        weights = [parts.head, *(linear.weight for linear in linears(parts))]
        found.append([piece.clone() for weight in weights for piece in weight.memory])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("quantization", "kind"),
    [
        ("none", None),
        ("int8", library.INT8_GROUP),
        ("int8-channel", library.INT8_CHANNEL),
        ("int4", library.INT6_GROUP),
    ],
)
def test_the_table_of_inputs_of_layers_is_rounded_as_a_tied_table_is(quantization: str, kind: int | None) -> None:
    need_native()
    config = config_of("gemma4")
    model, _ = random_model(
        config, seed=1, dtype="bfloat16", device=CPU, max_model_len=64,
        choose_backend=lambda _: NativeBackend(quantization, 1),
    )  # fmt: skip
    table = model._parts.per_layer_inputs.table  # type: ignore[attr-defined]
    if kind is None:
        assert isinstance(table, torch.Tensor) and table.dtype == torch.bfloat16
    else:
        assert isinstance(table, PackedWeight) and table.struct.kind == kind == model._parts.table.struct.kind  # type: ignore[attr-defined]
