"""The run divides the CPUs, and goes on without a proxy whose responses are bad."""

import argparse
import asyncio
from typing import Any

import pytest

from router_overhead.__main__ import Measurement, divided_cpus
from router_overhead.client_connection import BadResponse
from router_overhead.stream_load import StreamResult
from router_overhead.summary import DIRECT, ProxyRounds


class FakeProcess:
    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


async def fail() -> None:
    raise BadResponse("the response has status 502")


@pytest.mark.parametrize("num_rounds", [0, 1])
def test_a_proxy_whose_responses_are_bad_is_left_out_and_its_rounds_stay(num_rounds: int) -> None:
    process: Any = FakeProcess()
    measurement = Measurement(argparse.Namespace(), [], {})
    measurement._processes["a"] = process
    measurement.rounds = {"a": ProxyRounds("", [StreamResult(1.0, 9.0, 0.5, 0.5, ())] * num_rounds)}
    asyncio.run(measurement._attempt("a", fail()))
    assert measurement.left_out == {"a": "the response has status 502"} and process.is_stopped
    assert [*measurement._processes] == [] and len(measurement.rounds) == num_rounds


def test_without_a_proxy_a_bad_response_is_an_error() -> None:
    with pytest.raises(BadResponse):
        asyncio.run(Measurement(argparse.Namespace(), [], {})._attempt(DIRECT, fail()))


@pytest.mark.parametrize(
    ("usable", "divided"), [({0}, ({0}, {0})), ({3, 5}, ({5}, {3})), ({0, 1, 2, 3}, ({1}, {0}))]
)  # fmt: skip
def test_load_generator_and_proxies_have_a_cpu_each(usable: set[int], divided: tuple[set[int], set[int]]) -> None:
    assert divided_cpus(usable) == divided
