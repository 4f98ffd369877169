"""Measurements: the parts of the benchmark on one device; models are loaded once, one runner is open at a time."""

import gc
import time
from contextlib import suppress
from typing import Any

import torch

from chairlift.bench.workload.workload import Workload
from chairlift.model.backends.loaded_model import LoadedModel
from gpu_bench.bench_shapes import BenchShape, BenchSizes
from gpu_bench.device_facts import device_facts
from gpu_bench.device_peaks import copy_bandwidth, gemm_peak
from gpu_bench.device_timer import DeviceTimer
from gpu_bench.idle_time import measure_idle
from gpu_bench.mixed_load import mixed_workload, run_mixed, shortened
from gpu_bench.option_and_attention_comparisons import compare_attention, option_arms
from gpu_bench.part_budget import Measure, Part, PartSkipped
from gpu_bench.runner_steps import RunnerSteps, load_random, runner_facts
from gpu_bench.transformers_baseline import run_transformers

BASELINE_SHARE = 0.6
"""Share of the limit of part "baseline-8b" that transformers may use to generate; the rest is for loading."""


class Measurements:
    """The state that parts share: the device and its peaks, loaded models, and the open runner of one model.

    Attributes:
        parts: in order of importance.
    """

    def __init__(self, device: torch.device, sizes: BenchSizes) -> None:
        large, small = sizes.large, sizes.small
        self._device, self._sizes, self._timer = device, sizes, DeviceTimer(device)
        self._peaks: tuple[float, float] | None = None
        self._models: dict[str, LoadedModel] = {}
        self._open: tuple[str, RunnerSteps] | None = None
        self.parts = (
            self._part("device", 15, lambda limit: self.measure_device()),
            self._part("decode-8b", 90, lambda limit: self.measure_decode(large, limit)),
            self._part("idle-8b", 20, lambda limit: self.measure_idle(large)),
            self._part("prefill-8b", 15, lambda limit: self.measure_prefill(large)),
            self._part("mixed-8b", 60, lambda limit: self.measure_mixed(large, limit)),
            self._part("decode-0.6b", 40, lambda limit: self.measure_decode(small, limit)),
            self._part("mixed-0.6b", 40, lambda limit: self.measure_mixed(small, limit)),
            self._part("baseline-8b", 100, lambda limit: self.measure_baseline(large, limit)),
            self._part("overlap", 25, lambda limit: self.compare_overlap(small, limit)),
            self._part("options", 60, lambda limit: self.compare_options(small, limit)),
            self._part("attention", 10, lambda limit: self.compare_attention(large)),
        )

    def close(self) -> None:
        """Free the open runner and all models."""
        self._close_runner()
        self._models.clear()

    def measure_device(self) -> dict[str, Any]:
        """Measure the bandwidth of copies, in bytes read and written per second, and the peak of matrix products."""
        bandwidth = copy_bandwidth(self._timer, self._sizes.copy_bytes)
        peak = gemm_peak(self._timer, self._sizes.gemm)
        self._peaks = (bandwidth, peak)
        self._free()
        return {
            **device_facts(self._device), "copy_bytes_per_second": bandwidth, "gemm_flops_per_second": peak,
            "copy_bytes": self._sizes.copy_bytes, "gemm_size": self._sizes.gemm,
        }  # fmt: skip

    def measure_decode(self, shape: BenchShape, limit: float) -> dict[str, Any]:
        """Time decode steps of each batch beside the roofline of this run's peaks."""
        bandwidth, peak = self._known_peaks()
        steps, batches = self._runner(shape), {}
        for batch in self._sizes.batches:
            times = steps.time_decode(batch, limit / len(self._sizes.batches))
            roofline = shape.decode_roofline(batch, times.mean_context, bandwidth, peak)
            batches[str(batch)] = {
                "step_seconds": times.mean_seconds, "roofline_seconds": roofline,
                "share_of_roofline": roofline / times.mean_seconds, "mean_context": times.mean_context,
                "output_tokens_per_second": batch / times.mean_seconds, "all_seconds": times.seconds,
            }  # fmt: skip
        return {
            "model": shape.name, "weight_bytes": shape.step_weight_bytes, "kv_bytes_per_token": shape.sizes.kv_bytes(1),
            "batches": batches, "runner": runner_facts(steps.info),
        }  # fmt: skip

    def measure_idle(self, shape: BenchShape) -> dict[str, Any]:
        """Profile decode steps of the first batch; also compare the kernels' time with steps that are not profiled."""
        steps, batch = self._runner(shape), self._sizes.batches[0]
        num_steps = max(2, self._sizes.num_steps // 2)
        timed = steps.time_decode(batch, 10.0)
        plans = steps.start_decodes(batch)
        chosen = [next(plans) for _ in range(num_steps)]
        result = measure_idle(self._device, lambda: steps.run(chosen), num_steps)
        unprofiled = 1 - result["busy_seconds_per_step"] / timed.mean_seconds
        return {"model": shape.name, "batch": batch, **result, "idle_share_of_unprofiled_step": unprofiled}

    def measure_prefill(self, shape: BenchShape) -> dict[str, Any]:
        """Time the prefill of one prompt, sampling of its last token included."""
        _, peak = self._known_peaks()
        steps = self._runner(shape)
        steps.prefill()
        all_seconds = sorted(self._timer.host_seconds(steps.prefill) for _ in range(5))
        seconds, flops = all_seconds[len(all_seconds) // 2], shape.prefill_flops(self._sizes.prefill)
        return {
            "model": shape.name, "tokens": self._sizes.prefill, "seconds": seconds, "all_seconds": all_seconds,
            "flops": flops, "flops_per_second": flops / seconds, "share_of_gemm_peak": flops / seconds / peak,
        }  # fmt: skip

    def measure_mixed(self, shape: BenchShape, limit: float) -> dict[str, Any]:
        """Run the mixed workload through the whole engine."""
        self._close_runner()
        return {"model": shape.name, **self._mixed(shape, self._workload(shape), limit)}

    def measure_baseline(self, shape: BenchShape, limit: float) -> dict[str, Any]:
        """Run a shorter mixed workload through the engine, then the same through transformers."""
        self._close_runner()
        sizes = self._sizes
        workload = shortened(self._workload(shape), sizes.baseline_requests, sizes.baseline_outputs)
        own = self._mixed(shape, workload, limit * (1 - BASELINE_SHARE))
        self._free()
        baseline = run_transformers(shape.config, self._device, workload, limit * BASELINE_SHARE)
        self._free()
        return {
            "model": shape.name,
            "shortened": f"the first {sizes.baseline_requests} of {sizes.requests} requests, "
            f"at most {sizes.baseline_outputs} output tokens each",
            "chairlift": own, "transformers": baseline,
            "ratio": own["output_tokens_per_second"] / baseline["output_tokens_per_second"],
        }  # fmt: skip

    def compare_overlap(self, shape: BenchShape, limit: float) -> dict[str, Any]:
        """Run the shorter mixed workload with two steps in flight and with one."""
        self._close_runner()
        sizes = self._sizes
        workload = shortened(self._workload(shape), sizes.baseline_requests, sizes.baseline_outputs)
        arms = {str(overlap): self._mixed(shape, workload, limit / 2, overlap=overlap) for overlap in (True, False)}
        speeds = {name: arm["output_tokens_per_second"] for name, arm in arms.items()}
        return {"model": shape.name, "overlap": arms, "ratio": speeds["True"] / speeds["False"]}

    def compare_options(self, shape: BenchShape, limit: float) -> dict[str, Any]:
        """Time decode steps with each option of comparisons.OPTION_ARMS that this version has.

        Raises PartSkipped if it has none.
        """
        self._close_runner()
        arms = option_arms()
        if not arms:
            raise PartSkipped("this version has none of the runner options that are compared")
        started_at = time.perf_counter()
        results: dict[str, dict[str, Any]] = {}
        for name, options in {"default": {}, **arms}.items():
            if time.perf_counter() - started_at > limit:
                results[name] = {"skipped": f"no time left of {limit:.0f} s"}
                continue
            try:
                results[name] = self._step_seconds(shape, limit / 8, options)
            except Exception as error:  # one option that does not run must not lose the others
                results[name] = {"failed": f"{type(error).__name__}: {error}"}
            self._free()
        return {"model": shape.name, "step_seconds": results}

    def _step_seconds(self, shape: BenchShape, limit: float, options: dict[str, Any]) -> dict[str, Any]:
        """Return the mean seconds of a decode step by batch, with options of the runner and the model."""
        loaded = load_random(shape, self._device, **options) if options else self._loaded(shape)
        steps = RunnerSteps(loaded, self._sizes, **options)
        try:
            return {str(batch): steps.time_decode(batch, limit).mean_seconds for batch in self._sizes.batches}
        finally:
            steps.close()

    def compare_attention(self, shape: BenchShape) -> dict[str, Any]:
        """Time the attention of one layer's prefill by the engine's backend and by torch's varlen_attn."""
        _, peak = self._known_peaks()
        self._close_runner()
        return compare_attention(self._timer, shape, self._sizes.prefill, peak)

    def _part(self, name: str, seconds: float, measure: Measure) -> Part:
        """Return a part after whose failure no runner stays open: steps of its own may still be in flight."""

        def guarded(limit: float) -> dict[str, Any]:
            try:
                return measure(limit)
            except BaseException:
                with suppress(Exception):  # the first error counts
                    self._close_runner()
                raise

        return Part(name, seconds, guarded)

    def _mixed(self, shape: BenchShape, workload: Workload, limit: float, **options: Any) -> dict[str, Any]:
        result = run_mixed(self._loaded(shape), workload, self._sizes.max_model_len, limit, **options)
        self._free()
        return result

    def _workload(self, shape: BenchShape) -> Workload:
        return mixed_workload(self._sizes.requests, self._sizes.lengths, shape.sizes.vocabulary)

    def _known_peaks(self) -> tuple[float, float]:
        """Return bandwidth and GEMM peak of this run, measured now if part "device" has not done it."""
        if self._peaks is None:
            self.measure_device()
        assert self._peaks is not None
        return self._peaks

    def _loaded(self, shape: BenchShape) -> LoadedModel:
        if shape.name not in self._models:
            self._models[shape.name] = load_random(shape, self._device)
        return self._models[shape.name]

    def _runner(self, shape: BenchShape) -> RunnerSteps:
        """Return the open runner of a shape; that of another one is closed."""
        if self._open is None or self._open[0] != shape.name:
            self._close_runner()
            self._open = (shape.name, RunnerSteps(self._loaded(shape), self._sizes))
        return self._open[1]

    def _close_runner(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].close()
        self._free()

    def _free(self) -> None:
        """Return unused memory of the device to its driver."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
