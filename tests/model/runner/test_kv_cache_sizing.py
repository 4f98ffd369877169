"""Free memory from fake /proc and /sys trees of every kind, and the pool that follows from it, by hand-made numbers."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.registry import make_backend
from chairlift.model.backends.communicator import Communicator
from chairlift.model.batch.kv_cache_shape import KVCacheShape
from chairlift.model.config.attention_backend_names import BACKENDS
from chairlift.model.loading.tiny_model import tiny_config
from chairlift.model.runner.free_memory import FreeMemory, free_memory  # fmt: skip
from chairlift.model.runner.kv_cache_sizing import agree_on_sizes, max_cached_blocks, size_kv_cache
from chairlift.model.runner.step_memory_estimate import ActivationShape
from chairlift.model.sampling.lm_head_output import compute_lm_head_output
from chairlift.model.sampling.sampler import Sampler
from support_live_bytes import LiveBytes
from support_ranks import run_ranks
from support_sampling import params, sequence
from support_shares import for_each

CPU = torch.device("cpu")
MIB = 2**20
UNLIMITED_V1 = 9223372036854771712
POOL = KVCacheShape(
    groups=2, page_width=3 * 2 * 8, block_size=16, itemsize=4, max_running_requests=10, max_model_len=100,
)  # fmt: skip
STEP = ActivationShape(
    hidden_size=64, intermediate_size=128, attention_width=96, kv_width=16, vocab_size=1000, itemsize=4,
    max_batch_tokens=100, max_running_requests=10, max_model_len=100,
)  # fmt: skip
PAGE = 3 * 2 * 16 * 2 * 8 * 4
LARGE = FreeMemory(10**12, "a large machine")


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


class Machine:
    """A fake host: /proc with 1000 MiB available, /sys/fs/cgroup to be filled."""

    def __init__(self, root: Path, groups: str = "") -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        write(self.proc, meminfo=f"MemTotal: {4000 * 1024} kB\nMemFree: 5 kB\nMemAvailable: {1000 * 1024} kB")
        write(self.proc / "self", cgroup=groups)
        self.cgroup.mkdir()

    def v2(self, path: str, limit: object, used: int, inactive: int = 0) -> None:
        stat = f"anon 5\nactive_file 7\ninactive_file {inactive * MIB}\nfile 9"
        write(self.cgroup / path, memory__max=limit, memory__current=used * MIB, memory__stat=stat)

    def v1(self, path: str, limit: int, used: int, inactive: int = 0) -> None:
        stat = f"inactive_file 1\ntotal_inactive_file {inactive * MIB}"
        write(self.cgroup / path, memory__limit_in_bytes=limit, memory__usage_in_bytes=used * MIB, memory__stat=stat)

    def free(self) -> tuple[float, str]:
        found = free_memory(CPU, proc=self.proc, cgroup=self.cgroup)
        return found.num_bytes / MIB, found.limit


def test_finished_prompts_keep_a_bounded_part_of_a_cache_on_the_host_unless_its_size_is_set() -> None:
    small = replace(POOL, max_running_requests=1000)
    longest = 2 * 7  # blocks of 100 tokens in two groups
    assert max_cached_blocks(small) == 8 * longest, "of a small model eight of the longest sequences"
    assert max_cached_blocks(replace(small, page_width=3 * 2 * 8 * 8192)) == 512 * MIB // (8192 * PAGE) == 10
    size = size_kv_cache(small, STEP, LARGE, on_host=True)
    assert size.max_cached_blocks == 8 * longest and dict(size.report)["kv cache"].endswith("0.7 MiB, 896 tokens")
    for options in ({"max_memory": 0.5}, {"max_memory": 10**8}, {"num_blocks": 1000}, {"on_host": False}):
        assert size_kv_cache(small, STEP, LARGE, **{"on_host": True, **options}).max_cached_blocks is None  # type: ignore[arg-type]
    tight = replace(LARGE, num_bytes=STEP.peak_bytes() + 200 * PAGE)
    assert size_kv_cache(small, STEP, tight, on_host=True).max_cached_blocks == 49, "all of a smaller cache"


def test_without_cgroups_it_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert Machine(tmp_path).free() == (1000, "MemAvailable")


def test_a_limit_of_cgroup_v2_counts_and_inactive_file_pages_are_free(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/system.slice/lift.service")
    machine.v2("system.slice/lift.service", 500 * MIB, 200, inactive=50)
    free, limit = machine.free()
    assert free == 350
    assert limit.endswith("system.slice/lift.service/memory.max")


def test_the_tightest_group_on_the_way_up_decides(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a/b/c")
    machine.v2("a/b/c", "max", 10)
    machine.v2("a/b", 900 * MIB, 10)
    machine.v2("a", 300 * MIB, 250, inactive=20)
    assert machine.free()[0] == 70


def test_an_unlimited_group_leaves_the_host_s_number(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a")
    machine.v2("a", "max", 10)
    assert machine.free() == (1000, "MemAvailable")


def test_in_a_container_the_group_is_the_mount_itself(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/")
    machine.v2("", 256 * MIB, 56)
    assert machine.free()[0] == 200


@pytest.mark.parametrize("path", ["/docker/0123abc", "/../../outside"])
def test_a_path_that_is_not_mounted_here_falls_back_to_the_mount(tmp_path: Path, path: str) -> None:
    machine = Machine(tmp_path, f"5:cpu,cpuacct:/x\n4:memory:{path}\n0::/nothing")
    machine.v1("memory", 300 * MIB, 100, inactive=25)
    assert machine.free()[0] == 225


def test_cgroup_v1_counts_its_hierarchy_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/jobs/lift\n0::/")
    machine.v1("memory", UNLIMITED_V1, 900)
    machine.v1("memory/jobs", 400 * MIB, 390, inactive=100)
    machine.v1("memory/jobs/lift", UNLIMITED_V1, 30)
    free, limit = machine.free()
    assert free == 110
    assert limit.endswith("memory/jobs/memory.limit_in_bytes")


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a")
    machine.v2("a", 100 * MIB, 150)
    assert machine.free()[0] == 0


def test_mapped_weights_are_taken_off(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    line = "7f0000000000-7f0006400000 r--s 00000000 08:01 12 /models/a b/model-00001-of-00002.safetensors"
    other = "7f1000000000-7f1006400000 r-xp 00000000 08:01 13 /usr/lib/libtorch.so"
    write(machine.proc / "self", maps=f"{line}\n{other}")
    assert machine.free() == (900, "MemAvailable less 100.0 MiB of mapped weights")


def test_the_pool_is_a_share_of_what_a_step_leaves() -> None:
    pool = replace(POOL, max_running_requests=10**6)
    free = FreeMemory(STEP.peak_bytes() + 1000 * PAGE, "x")  # one of them is the spare one
    for share, blocks in ((None, 249), (0.5, 499), (1.0, 999), (77 * PAGE + 5, 76)):
        assert size_kv_cache(pool, STEP, free, on_host=True, max_memory=share).num_blocks == blocks
    assert size_kv_cache(pool, STEP, free, on_host=False).num_blocks == 899


def test_no_more_blocks_than_the_largest_batch_could_hold() -> None:
    sized = size_kv_cache(POOL, STEP, LARGE, on_host=True)
    assert sized.num_blocks == 10 * 2 * 7
    assert dict(sized.report)["num_blocks"] == "140 (as many as max_running_requests of max_model_len tokens can use)"


@pytest.mark.parametrize("num_blocks", [None, 50])
def test_a_pool_says_how_large_a_page_is(num_blocks: int | None) -> None:
    assert size_kv_cache(POOL, STEP, LARGE, on_host=True, num_blocks=num_blocks).page_bytes == PAGE
    deeper = replace(POOL, page_width=6 * 2 * 8)
    assert size_kv_cache(deeper, STEP, LARGE, on_host=True, num_blocks=num_blocks).page_bytes == 2 * PAGE


def test_num_blocks_as_asked_is_checked_against_what_is_free() -> None:
    assert size_kv_cache(POOL, STEP, LARGE, on_host=True, num_blocks=5000).num_blocks == 5000
    tight = FreeMemory(STEP.peak_bytes() + 11 * PAGE, "x")
    assert size_kv_cache(POOL, STEP, tight, on_host=True, num_blocks=10).num_blocks == 10
    with pytest.raises(ConfigError) as caught:
        size_kv_cache(POOL, STEP, tight, on_host=True, num_blocks=11)
    assert caught.value.details["needed"] == STEP.peak_bytes() + 12 * PAGE
    assert caught.value.details["free"] == tight.num_bytes


def test_a_pool_that_holds_not_even_one_short_sequence_is_refused_with_both_numbers() -> None:
    just = FreeMemory(STEP.peak_bytes() + 5 * PAGE, "x")
    assert size_kv_cache(POOL, STEP, just, on_host=True, max_memory=1.0).num_blocks == 4
    short = FreeMemory(just.num_bytes - 1, "x")
    with pytest.raises(
        ConfigError, match=rf"least 5 blocks of {PAGE} bytes.* {5 * PAGE} bytes, but {5 * PAGE - 1} bytes"
    ):
        size_kv_cache(POOL, STEP, short, on_host=True, max_memory=1.0)
    with pytest.raises(ConfigError, match="but 0 bytes are left"):
        size_kv_cache(POOL, STEP, FreeMemory(5, "x"), on_host=True)


def test_bytes_that_are_not_there_are_refused_with_both_numbers() -> None:
    free = FreeMemory(STEP.peak_bytes() + 100, "x")
    with pytest.raises(ConfigError, match="is 101 bytes, but 100 bytes are free"):
        size_kv_cache(POOL, STEP, free, on_host=True, max_memory=101)
    with pytest.raises(ConfigError, match="is 303 bytes, 101 for each of 3 ranks, but 100 bytes are free"):
        size_kv_cache(POOL, STEP, FreeMemory(free.num_bytes, "x", 3), on_host=True, max_memory=303)


def test_bytes_are_divided_between_those_that_share_the_memory() -> None:
    free = FreeMemory(STEP.peak_bytes() + 1000 * PAGE, "x", num_sharers=2)
    sized = size_kv_cache(replace(POOL, max_running_requests=10**6), STEP, free, on_host=True, max_memory=40 * PAGE)
    assert sized.num_blocks == 19 and dict(sized.report)["num_blocks"].endswith(" on all ranks)")


def test_each_size_of_a_step_makes_its_peak_larger() -> None:
    for name in ("hidden_size", "intermediate_size", "attention_width", "vocab_size", "itemsize", "max_batch_tokens",
                 "max_running_requests", "max_model_len"):  # fmt: skip
        assert replace(STEP, **{name: getattr(STEP, name) * 8}).peak_bytes() > STEP.peak_bytes(), name
    assert replace(STEP, kv_width=10**5).peak_bytes() > STEP.peak_bytes(), "what is gathered exceeds the workspace"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_takes_no_more_than_was_reckoned_for_it(backend: str) -> None:
    free = FreeMemory(STEP.peak_bytes() + 1000 * PAGE, "x")
    sized = size_kv_cache(replace(POOL, max_running_requests=10**6), STEP, free, on_host=True, max_memory=100 * PAGE)
    kv = make_backend(backend).allocate_kv_cache(3, sized.num_blocks, POOL.block_size, 2, 8, torch.float32, CPU)
    storages = [each.untyped_storage() for one in kv for each in (one.key, one.value)]
    assert sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()) <= 100 * PAGE


def test_every_kind_of_window_has_a_mask_of_its_own_that_is_no_wider_than_the_window() -> None:
    queries, itemsize = STEP.max_batch_tokens, STEP.itemsize
    more = replace(STEP, windows=(None, 8, 8, 16)).peak_bytes() - STEP.peak_bytes()
    assert more == queries * (queries + 8) * itemsize + queries * (queries + 16) * itemsize
    assert replace(STEP, windows=(10**9,)).peak_bytes() == STEP.peak_bytes()
    assert replace(STEP, windows=(8,)).peak_bytes() < STEP.peak_bytes()


@for_each("dtype", [torch.bfloat16, torch.float32, torch.float64])
@for_each(
    "asked",
    [
        {}, {"top_p": 0.99999, "logprobs": 20}, {"top_k": 9_999, "top_p": 0.99999, "logprobs": 20},
        {"repetition_penalty": 1.3, "top_p": 0.99999, "min_p": 1e-9, "logprobs": 20},
    ],
)  # fmt: skip
def test_sampling_stays_below_its_part_of_the_peak(asked: dict[str, Any], dtype: torch.dtype) -> None:
    rows, vocab_size = 16, 10_000
    sampler = Sampler(rows, vocab_size)
    for slot in range(rows):  # one of them is greedy, so that rows are picked out
        sampler.add_sequence(sequence(slot, params(temperature=float(slot > 0), seed=slot, **asked)))
    raw = torch.randn(rows, vocab_size).to(dtype)
    with torch.inference_mode(), LiveBytes() as live:
        logits = raw + 0
        sampler.sample(partial(compute_lm_head_output, logits), np.arange(rows))
    shape = replace(STEP, vocab_size=vocab_size, max_running_requests=rows, itemsize=dtype.itemsize)
    # A sort on the CPU has scratch space that no tensor owns: about another value and another index an element.
    scratch = rows * vocab_size * 16
    assert live.peak + scratch < shape.peak_bytes() - replace(shape, vocab_size=1).peak_bytes()


# New tokens and length of each row of a full step: a long prompt, chunks behind prefixes, decodes, and all of them.


@pytest.mark.parametrize(("on_host", "expected"), [(True, 500), (False, 1000)])
def test_every_rank_sizes_its_cache_by_the_least_free_memory(on_host: bool, expected: int) -> None:
    def run(communicator: Communicator) -> tuple[int, int, int]:
        free = FreeMemory(1000 + 100 * communicator.shard.rank, "free on a device")
        model, agreed = agree_on_sizes(communicator, tiny_config(), free, on_host=on_host)
        return agreed.num_bytes, model.num_kv_heads, model.vocab_size

    assert run_ranks(2, run) == [(expected, 1, 259)] * 2
