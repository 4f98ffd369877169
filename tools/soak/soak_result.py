"""SoakResult: the measurements of a soak test."""

from collections.abc import Sequence
from dataclasses import dataclass

from soak.fault_injection import InjectedFault
from soak.raw_client import RequestResult
from soak.request_mix import SoakRequest
from soak.server_samples import IdleSample, ServerSample


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """The measurements of a soak test; times are seconds since its start.

    Attributes:
        seconds: duration of the test.
        settle_seconds: time after a process's start from which on its memory is judged.
        samples: samples of the server, in order.
        idle_samples: samples of the idle server, in order.
        faults: faults that were injected.
        unexpected: requests whose results have to be examined, with these results.
        num_requests: number of requests that have ended.
        num_dropped: number of unexpected results that were not kept.
        num_rejected: number of requests that were rejected with 429.
        exit_code: exit code of the server after SIGTERM.
        num_temp_files: number of temporary files that the server left behind.
    """

    seconds: float
    settle_seconds: float
    samples: Sequence[ServerSample]
    idle_samples: Sequence[IdleSample]
    faults: Sequence[InjectedFault]
    unexpected: Sequence[tuple[SoakRequest, RequestResult]]
    num_requests: int
    num_dropped: int
    num_rejected: int
    exit_code: int
    num_temp_files: int
