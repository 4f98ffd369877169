"""Instructions of a Dockerfile, by stage; and what .dockerignore sends to the builder."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from support_source_tree import ROOT

DOCKER = ROOT / "deploy" / "docker"
DOCKERFILES = (DOCKER / "Dockerfile", DOCKER / "Dockerfile.cuda")


@dataclass
class Stage:
    """The instructions between two FROM.

    Attributes:
        base: image that it starts from.
        name: its name; "" for none.
        instructions: (keyword, text) of each one, its continued lines joined.
    """

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, keyword: str) -> list[str]:
        """Return the texts of the instructions with a keyword."""
        return [text for name, text in self.instructions if name == keyword]

    def last(self, keyword: str) -> str:
        return self.all(keyword)[-1]

    @property
    def environ(self) -> dict[str, str]:
        """The variables that ENV sets; quotes and references stay as they are."""
        return dict(re.findall(r"(\w+)=(\S+)", " ".join(self.all("ENV"))))

    @property
    def labels(self) -> dict[str, str]:
        return dict(re.findall(r'([\w.]+)="([^"]*)"', " ".join(self.all("LABEL"))))


def stages(path: Path) -> list[Stage]:
    """Parse a Dockerfile."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")]
    found: list[Stage] = []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        keyword, _, text = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = text.partition(" AS ")
            found.append(Stage(base, name))
        elif keyword and found:
            found[-1].instructions.append((keyword, " ".join(text.split())))
    return found


def copies(stage: Stage) -> Iterator[tuple[str, list[str], str]]:
    """Yield the stage, sources and target of each COPY; the stage is "" for the folder that is built."""
    for text in stage.all("COPY"):
        words = text.split()
        origin = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        yield origin, words[:-1], words[-1]


def is_sent(path: Path) -> bool:
    """Return whether .dockerignore lets a file or folder of the project through; its last matching line counts."""
    name, sent = path.relative_to(ROOT).as_posix(), True
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keeps = pattern.startswith("!")
        wanted = pattern.removeprefix("!").removeprefix("**/")
        parts = name.split("/")
        prefixes = ["/".join(parts[: number + 1]) for number in range(len(parts))]
        names = [*prefixes, *parts] if "**/" in pattern else prefixes
        if any(fnmatch(each, wanted) for each in names):
            sent = keeps
    return sent
