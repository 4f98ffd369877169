"""diagnose: reads a live server twice, and through a router its replicas, and says what is wrong."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chairlift import __version__
from chairlift.cli.diagnosis.finding import ERROR, WARNING, Finding
from chairlift.cli.diagnosis.router_checks import CONTROLLERS, check_router, replicas_of
from chairlift.cli.diagnosis.server_checks import ServerChecks
from chairlift.cli.diagnosis.server_reader import PARTS, SECOND_PARTS, Keys, ServerReader, read_all
from chairlift.cli.diagnosis.server_snapshot import ServerSnapshot
from chairlift.core.errors import ConfigError
from chairlift.observability.url_check_and_redaction import without_user_info

MAX_REASON_CHARS = 300

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
    snapshots: tuple[ServerSnapshot, ...]
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
    readers, unread = [reader], list[Finding]()
    if first.is_reachable:
        for url in [str(each.get("replica_id")) for each in replicas_of(first) if each.get("kind") == CHAIRLIFT]:
            try:
                readers.append(ServerReader(url, replica_keys, reader.part_seconds, reader.tls))
            except ConfigError:
                unread.append(_not_read(url, "its address is no URL of HTTP"))
    direct = read_all(readers[1:], tuple(PARTS))
    snapshots = [first, *_with_reports(reader, first, direct)]
    if not first.is_reachable:
        return Diagnosis(url=reader.url, snapshots=(first,), findings=tuple(ServerChecks(first, first).run()))
    newest = max(each.at_seconds for each in snapshots)
    time.sleep(max(0.0, newest + interval - time.monotonic()))
    has_replicas = first.object("debug").get("service") in CONTROLLERS
    parts = (*SECOND_PARTS, "debug") if has_replicas else SECOND_PARTS
    pairs = list(zip(readers[1:], direct, strict=True))
    heard = iter(read_all([each for each, old in pairs if old.is_reachable], SECOND_PARTS))
    again = [
        reader.read(parts),
        *(next(heard) if old.is_reachable else known for old, known in zip(direct, snapshots[1:], strict=True)),
    ]
    after = [_merged(*pair) for pair in zip(snapshots, again, strict=True)]
    is_read = [True, *(each.is_reachable for each in direct)]
    findings = [*_findings(snapshots, after, is_read), *_failed_later(snapshots, again), *unread]
    return Diagnosis(url=reader.url, snapshots=tuple(after), findings=tuple(findings))


def _with_reports(
    reader: ServerReader, router: ServerSnapshot, replicas: Sequence[ServerSnapshot]
) -> list[ServerSnapshot]:
    """Return the replicas, with the report that the router reads of each one that did not give its own."""
    if not router.object("debug").get("has_replica_admin_key"):
        return list(replicas)
    missing = [each.url for each in replicas if not each.parts["debug"].is_ok]
    reports = reader.read_reports(missing)
    return [
        replace(each, parts={**each.parts, "debug": report}) if (report := reports.get(each.url)) is not None else each
        for each in replicas
    ]


def _merged(before: ServerSnapshot, after: ServerSnapshot) -> ServerSnapshot:
    """Return all parts, the newest good one of each; the clock of this machine is that of its /admin/debug."""
    newer = {name: part for name, part in after.parts.items() if part.is_ok or not before.parts[name].is_ok}
    timed = after if "debug" in newer else before
    return ServerSnapshot(
        url=before.url, at_seconds=after.at_seconds, wall_from=timed.wall_from, wall_to=timed.wall_to,
        parts={**before.parts, **newer},
    )  # fmt: skip


def _failed_later(before: Sequence[ServerSnapshot], again: Sequence[ServerSnapshot]) -> Iterator[Finding]:
    """Yield the routes that answered at first and then no more."""
    for old, new in zip(before, again, strict=True):
        for name, part in new.parts.items():
            if old.parts[name].is_ok and not part.is_ok:
                what = f"{part.path} answered, and failed some seconds later: {part.error or f'status {part.status}'}"
                yield Finding(check="partial", level=ERROR, server=new.url, what=what)


def _not_read(url: str, reason: str) -> Finding:
    what = f"the replica cannot be read from here: {reason}"
    return Finding(check="replica_not_read", level=WARNING, server=without_user_info(url), what=what)


def _checked(checks: Iterable[Finding], url: str) -> Iterator[Finding]:
    """Yield what the checks find; answers that have other types than Chairlift's end them with a finding."""
    try:
        yield from checks
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        what = f"an answer cannot be understood: {type(error).__name__}: {error}"
        yield Finding(check="not_understood", level=ERROR, server=url, what=what[:MAX_REASON_CHARS])


def _findings(
    before: Sequence[ServerSnapshot], after: Sequence[ServerSnapshot], is_read: Sequence[bool]
) -> list[Finding]:
    url = after[0].url
    findings = [*_checked(ServerChecks(before[0], after[0]).run(), url)]
    findings += _checked(check_router(before[0], after[0]), url)
    for old, new, was_read in zip(before[1:], after[1:], is_read[1:], strict=True):
        if was_read:
            findings += _checked(ServerChecks(old, new).run(), new.url)
        else:
            findings.append(_not_read(new.url, next(iter(old.parts.values())).error))
    return findings
