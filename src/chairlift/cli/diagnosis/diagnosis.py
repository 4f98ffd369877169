"""diagnose: reads a live server twice, and through a router its replicas, and says what is wrong."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chairlift import __version__
from chairlift.cli.diagnosis.finding import ERROR, WARNING, Finding
from chairlift.cli.diagnosis.router_checks import CONTROLLERS, check_router, replicas_of
from chairlift.cli.diagnosis.server_checks import ServerChecks
from chairlift.cli.diagnosis.server_reader import PARTS, SECOND_PARTS, Keys, ServerReader, Snapshot, read_all

CHAIRLIFT = "chairlift"
"""Kind of a replica that is a Chairlift server. Others get no keys and are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was read and found.

    Attributes:
        url: URL of the server.
        snapshots: of the server, then of the replicas behind it.
        findings: what is wrong.
    """

    url: str
    snapshots: tuple[Snapshot, ...]
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the findings as a report."""
        first, *replicas = self.snapshots
        service = first.object("debug").get("service") or (
            "router" if "replicas" in first.object("load") else "replica"
        )
        return {
            "chairlift": __version__,
            "url": self.url,
            "service": service if first.is_reachable else "down",
            "version": first.object("debug").get("version") or first.object("version").get("version"),
            "replicas": [each.url for each in replicas],
            "problems": [each.as_json() for each in self.findings],
            "ok": not any(each.level == ERROR for each in self.findings),
        }


def diagnose(reader: ServerReader, replica_keys: Keys, interval: float) -> Diagnosis:
    """Read the server, wait for `interval` seconds, read what changes again, and check it.

    The replicas of a router that are Chairlift servers get `replica_keys`.
    """
    first = reader.read(tuple(PARTS))
    readers = [reader]
    if first.is_reachable:
        urls = [str(each["replica_id"]) for each in replicas_of(first) if each.get("kind") == CHAIRLIFT]
        readers += [ServerReader(url, replica_keys, reader.part_seconds) for url in urls]
    snapshots = [first, *read_all(readers[1:], tuple(PARTS))]
    if not first.is_reachable:
        return Diagnosis(url=reader.url, snapshots=(first,), findings=tuple(ServerChecks(first, first).run()))
    newest = max(each.at_seconds for each in snapshots)
    time.sleep(max(0.0, newest + interval - time.monotonic()))
    has_replicas = first.object("debug").get("service") in CONTROLLERS
    parts = (*SECOND_PARTS, "debug") if has_replicas else SECOND_PARTS
    again = [reader.read(parts), *read_all(readers[1:], SECOND_PARTS)]
    after = [_merged(*pair) for pair in zip(snapshots, again, strict=True)]
    return Diagnosis(url=reader.url, snapshots=tuple(after), findings=tuple(_findings(snapshots, after)))


def _merged(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return all parts, the newest of each; the clock of this machine is that of the reading of /admin/debug."""
    timed = after if "debug" in after.parts else before
    return Snapshot(
        url=before.url, at_seconds=after.at_seconds, wall_from=timed.wall_from, wall_to=timed.wall_to,
        parts={**before.parts, **after.parts},
    )  # fmt: skip


def _findings(before: Sequence[Snapshot], after: Sequence[Snapshot]) -> list[Finding]:
    findings = [*ServerChecks(before[0], after[0]).run(), *check_router(before[0], after[0])]
    for old, new in zip(before[1:], after[1:], strict=True):
        if old.is_reachable:
            findings += ServerChecks(old, new).run()
        else:
            reason = next(iter(old.parts.values())).error
            what = f"the replica cannot be read from here: {reason}"
            findings.append(Finding(check="replica_not_read", level=WARNING, server=new.url, what=what))
    return findings
