"""Hardware: the devices of a plan."""

from typing import Any

import pytest

from chairlift.bench.planning.hardware_spec import Hardware
from chairlift.core.errors import ConfigError


def test_gpus_and_machines_have_their_own_shares_and_defaults() -> None:
    gpu, machine = Hardware(gpus=4, memory=80 * 10**9), Hardware(gpus=0, memory=80 * 10**9, cores=4)
    assert (gpu.device, gpu.max_devices, machine.device, machine.max_devices) == ("GPU", 4, "CPU machine", 1)
    assert gpu.device_memory.usable == 70_500_000_000 and machine.device_memory.usable == 63_500_000_000
    assert gpu.device_speed.bandwidth == 2039e9 and machine.device_speed.bandwidth == 100e9
    assert gpu.has_default_speed and not Hardware(gpus=1, memory=1, bandwidth=1.0, speed=1.0).has_default_speed


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": -1}, "gpus must be at least 0, got -1"), ({"gpus": 1, "memory": 0}, "gpu_memory must be a positive"),
        ({"memory": 0}, "memory must be a positive"), ({"cores": 0}, "cores must be at least 1, got 0"),
        ({"price": -1.0}, "price must be a number of at least 0, got -1"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Hardware(**{"gpus": 0, "memory": 10**9, "cores": 2, **fields})
