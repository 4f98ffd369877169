"""host_speed, gpu_speed: defaults grow with the cores up to a socket, and given values replace them."""

import pytest

from chairlift.bench.planning.device_speed import gpu_speed, host_speed
from chairlift.core.errors import ConfigError


def test_defaults_grow_with_the_cores_up_to_a_socket() -> None:
    assert host_speed(2).bandwidth == 50e9 and host_speed(64).bandwidth == 200e9 and host_speed(64).speed == 25.6e12
    assert host_speed(2, 90e9, 1e12).bandwidth == 90e9 and gpu_speed(3.35e12).bandwidth == 3.35e12
    with pytest.raises(ConfigError, match="tflops must be a positive number"):
        gpu_speed(None, 0.0)
