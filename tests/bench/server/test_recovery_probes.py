"""RecoveryProbes: one slow probe does not decide the baseline; when a server is normal again, or given up."""

import asyncio

import pytest

from chairlift.bench.server import recovery_probes
from chairlift.bench.server.api_requests import PreparedRequest
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.recovery_probes import GIVE_UP_SECONDS, RecoveryProbes
from chairlift.bench.server.server_address import Address
from support_scripted_server import ReceivedRequest, Script, plain_response, scripted_server, stream_response
from support_server import run


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_probes, "PROBE_GAP_SECONDS", 0.05)


def answering(*seconds: float | None) -> Script:
    """Respond after each of these seconds in turn, None for a rejection; the last one repeats."""
    left = list(seconds)

    async def script(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        pause = left.pop(0) if len(left) > 1 else left[0]
        if pause is None:
            writer.write(plain_response(429, b"{}"))
            return
        await asyncio.sleep(pause)
        writer.write(stream_response(1))

    return script


async def probed(
    script: Script, *, learns: bool = False, give_up_seconds: float = GIVE_UP_SECONDS
) -> tuple[RecoveryProbes, float | None]:
    """Probe a server; without a measured baseline it is one second."""
    async with scripted_server(script) as server:
        client = Client(Address.of(server.url))
        probes = RecoveryProbes(client, PreparedRequest(0.0, client.request("GET", "/"), 0), give_up_seconds)
        if learns:
            await probes.measure_baseline()
            found = None
        else:
            probes.baseline = 1.0
            found = await probes.until_normal()
        client.close()
        return probes, found


def test_how_fast_is_fast_does_not_hang_on_one_probe() -> None:
    probes, _ = run(probed(answering(1.0, 0.05), learns=True))
    assert 0.05 <= probes.baseline < 1.0 and probes.limit == 2 * probes.baseline + 0.05


@pytest.mark.usefixtures("brisk")
def test_a_server_that_is_fast_is_normal_at_once() -> None:
    _, found = run(probed(answering(0.0)))
    assert found == pytest.approx(0.0, abs=0.04)


@pytest.mark.usefixtures("brisk")
def test_normal_begins_with_the_first_of_a_run_of_fast_probes() -> None:
    _, found = run(probed(answering(None, 0.0, 0.0, None, 0.0)))
    assert found is not None and found >= 4 * 0.05


@pytest.mark.usefixtures("brisk")
def test_probes_do_not_wait_for_a_slow_response_which_is_not_normal() -> None:
    _, found = run(probed(answering(30.0, 30.0, 0.0)))
    assert found is not None and 2 * 0.05 <= found < 30.0


@pytest.mark.usefixtures("brisk")
def test_a_server_that_stays_slow_is_given_up() -> None:
    assert run(probed(answering(None), give_up_seconds=0.3))[1] is None
