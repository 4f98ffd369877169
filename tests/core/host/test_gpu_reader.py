"""GpuReader: the GPUs of one replica, with errors, lost GPUs and missing drivers."""

import logging

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.host.gpu_reader import RETRY_SECONDS, GpuReader, GpuUsage, visible_gpus
from support_nvml import GIB, LOST, MIG_UUID, NO_DRIVER, UUIDS, FakeNvml
from support_shares import for_each

FIRST = GpuUsage(
    gpu="0", name="NVIDIA H100", utilization_ratio=0.35, memory_used_bytes=20 * GIB, memory_total_bytes=80 * GIB
)
SECOND = GpuUsage(
    gpu="1", name="NVIDIA H200", utilization_ratio=0.75, memory_used_bytes=105 * GIB, memory_total_bytes=140 * GIB
)


@for_each(
    ("names", "found"),
    [
        (None, ["0", "1"]), ("", []), ("-1", []), ("1", ["1"]), ("1,0", ["1", "0"]), (" 0 , 1 ", ["0", "1"]),
        ("0,7,1", ["0"]), ("x", []), (UUIDS[1], ["1"]), ("GPU-12,0", ["1", "0"]), ("GPU-1", []), ("GPU-9,0", []),
        (f"{MIG_UUID},1", [MIG_UUID, "1"]), ("MIG-0", []), ("1,1", ["1"]),
    ],
)  # fmt: skip
def test_visible_gpus_are_those_of_cuda(names: str | None, found: list[str]) -> None:
    assert [name for name, _ in visible_gpus(FakeNvml().open(), names)] == found


@for_each(
    ("device", "visible", "found"),
    [
        (None, None, (FIRST, SECOND)), (None, "1", (SECOND,)), ("cuda", None, (FIRST,)), ("cuda:1", None, (SECOND,)),
        ("cuda", "1,0", (SECOND,)), ("cuda:1", "1,0", (FIRST,)), ("cuda:1", "1", ()),
    ],
)  # fmt: skip
def test_a_replica_reads_the_gpu_of_its_device(
    device: str | None, visible: str | None, found: tuple[GpuUsage, ...]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    reader = GpuReader(device, environ, open_library=FakeNvml().open, clock=FakeClock())
    assert reader.read() == found


def test_a_part_of_a_gpu_reports_its_memory_alone(caplog: pytest.LogCaptureFixture) -> None:
    reader = GpuReader("cuda", {"CUDA_VISIBLE_DEVICES": MIG_UUID}, open_library=FakeNvml().open, clock=FakeClock())
    (usage,) = reader.read()
    assert (usage.gpu, usage.memory_total_bytes, usage.utilization_ratio) == (MIG_UUID, 10 * GIB, None)
    assert usage.error == "Not Supported" and not caplog.records


def test_a_machine_without_a_driver_is_asked_again_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    fake, clock = FakeNvml(), FakeClock()
    fake.set("fake_init_error", NO_DRIVER)
    reader = GpuReader(None, {}, open_library=fake.open, clock=clock)
    for _ in range(3):
        assert reader.read() == ()
        clock.advance(1)
    assert fake.get("fake_num_inits") == 1 and not caplog.records, "that is no problem"
    fake.set("fake_init_error", 0)
    clock.advance(RETRY_SECONDS)
    assert reader.read() == (FIRST, SECOND) and fake.get("fake_num_inits") == 2


def test_this_machine_can_be_asked_with_or_without_a_driver() -> None:
    assert all(each.gpu.isdigit() for each in GpuReader(None, {}).read())


def test_a_lost_gpu_is_logged_once_and_read_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    fake, clock = FakeNvml(), FakeClock()
    reader = GpuReader(None, {}, open_library=fake.open, clock=clock)
    assert reader.read() == (FIRST, SECOND)
    fake.fail_gpus(0, LOST)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            first, second = reader.read()
            assert first == FIRST and second == GpuUsage(gpu="1", error="GPU is lost")
            clock.advance(2)
    assert [each.getMessage() for each in caplog.records] == ["the use of a GPU cannot be read: GPU 1: GPU is lost"]
    assert fake.get("fake_num_inits") == 1
    clock.advance(RETRY_SECONDS)
    reader.read()
    assert fake.get("fake_num_inits") == 2 and fake.get("fake_num_open") == 1, "opened anew, and closed before"
    fake.fail_gpus(0, 0)
    assert reader.read() == (FIRST, SECOND)
    reader.close()
    assert fake.get("fake_num_open") == 0


def test_a_driver_that_ends_gives_no_gpu_until_it_is_back() -> None:
    fake, clock = FakeNvml(), FakeClock()
    reader = GpuReader(None, {}, open_library=fake.open, clock=clock)
    reader.read()
    fake.set("fake_num_open", 0)  # as after the driver was loaded again
    clock.advance(RETRY_SECONDS)
    assert [each.error for each in reader.read()] == ["Uninitialized"] * 2
    assert reader.read() == (FIRST, SECOND)
