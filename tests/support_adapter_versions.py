"""AdapterVersions: names of LoRA adapters on a fake engine, whose versions are replaced while requests run."""

import random
from collections.abc import Sequence
from pathlib import Path

from chairlift.core.adapter_version import NO_ADAPTER, AdapterVersion
from support_engine import EngineHarness

NAMES = ("", "a", "b", "c")
"""Names of adapters; "" is the model without one."""

NUM_CONTENTS = 3
"""Different files that a name may have; a version may get those of an earlier one again."""


class AdapterVersions:
    """The current version of each name; an older one stays until its last request has ended.

    Attributes:
        num_reloads: versions that replaced another one.
        num_dropped: versions that the runner no longer has.
    """

    def __init__(self, harness: EngineHarness) -> None:
        self._harness = harness
        self._current: dict[str, AdapterVersion] = {"": NO_ADAPTER}
        self._replaced: list[AdapterVersion] = []
        self._last_number = self.num_reloads = self.num_dropped = 0

    def version(self, name: str) -> AdapterVersion:
        """Return the version that a new request of a name gets."""
        if name not in self._current:
            self._load(name, 0)
        return self._current[name]

    def reload(self, name: str, content: int) -> None:
        """Replace the version of a name by one of other files, or of equal ones."""
        if name:
            self._replaced.append(self.version(name))
            self._load(name, content)
            self.num_reloads += 1

    def _load(self, name: str, content: int) -> None:
        self._last_number += 1
        self._current[name] = AdapterVersion(self._last_number, f"digest of {name} {content}")
        self._harness.runner.adapters.add(self._last_number, self._current[name].digest)

    def drop_unused(self) -> None:
        """Drop the replaced versions without an open request."""
        groups = self._harness.scheduler.sequence_groups
        in_use = {self._harness.requests[name].adapter for name in groups}
        unused = [version for version in self._replaced if version not in in_use]
        if unused:
            self._harness.collect_in_flight()
        for version in unused:
            if version not in {self._harness.requests[name].adapter for name in groups}:
                self._harness.loop.drop_adapter(version.number)
                self._replaced.remove(version)
                self.num_dropped += 1

    def change(self, rng: random.Random) -> None:
        """Sometimes replace a version, and sometimes drop what is unused."""
        if rng.random() < 0.1:
            self.reload(rng.choice(NAMES), rng.randrange(NUM_CONTENTS))
        if rng.random() < 0.1:
            self.drop_unused()


def write_adapter(folder: Path, contents: Sequence[bytes] = (b"weights",)) -> Path:
    """Write a folder that a FakeRunner loads as an adapter; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"file{number}").write_bytes(content)
    return folder
