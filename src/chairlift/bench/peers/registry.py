"""The catalogue of peers: who can be named in --against, how each is run, and the settings that --peer gives it.

A peer may be named several times with labels of one's own (`openvino@int8`), each with its own settings; a setting of a
name without a label holds for all its labels.
"""

import importlib.util
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chairlift.core.errors import ConfigError

OURS = "chairlift"


def own_command(module: str, *words: str) -> tuple[str, ...]:
    """Return the command of a program of this package that obeys orders (child.py)."""
    return (sys.executable, "-P", "-m", f"chairlift.bench.{module}", *words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Somebody who can run a workload.

    Attributes:
        name: in tables and reports.
        command: a program and its first words, which takes an order file and a result file; see child.py.
        package: without which it cannot run here; "" where another Python or a program of its own runs it.
        settings: that it takes, each with what it means.
        needed: settings that it cannot do without.
        given: what --peer said, by setting.
    """

    name: str
    command: tuple[str, ...]
    package: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)


_TRANSFORMERS = tuple(
    Peer(
        name=f"transformers-{way}", command=own_command("peers.transformers_peer", way), package="transformers",
    )
    for way in ("static", "continuous", "single")
)  # fmt: skip
_PYTHON = {"python": "the interpreter that has it (default: this one)"}

PEERS: Mapping[str, tuple[Peer, ...]] = {
    "transformers": _TRANSFORMERS[:2],
    "transformers-single": _TRANSFORMERS[2:],
    "vllm": (
        Peer(
            name="vllm", command=own_command("peers.external_python", "vllm"),
            settings={
                **_PYTHON, "model": "another folder", "quantization": "its name for one", "kv_gib": "for its KV cache",
                "max_num_seqs": "at once", "max_num_batched_tokens": "in a step",
            },
        ),
    ),
    "openvino": (
        Peer(
            name="openvino", command=own_command("peers.external_python", "openvino"), needed=("model",),
            settings={
                **_PYTHON, "model": "the folder that optimum-intel exported", "precision": "bf16, f32 or f16",
                "kv_precision": "of its KV cache", "kv_gib": "for its KV cache", "max_num_seqs": "at once",
                "max_num_batched_tokens": "in a step",
            },
        ),
    ),
    "llama.cpp": (
        Peer(
            name="llama.cpp", command=own_command("peers.llama_cpp"), needed=("model",),
            settings={
                "model": "a GGUF file", "server": "its llama-server (default: the one on PATH)",
                "slots": "requests at once", "context": "tokens of each",
            },
        ),
    ),
}  # fmt: skip
"""By the names that --against takes; one may stand for several ways to run a peer."""


def peers_of(names: Sequence[str], settings: Sequence[str] = ()) -> list[Peer]:
    """Return the peers of these names, with their settings; a peer's own name is good, too.

    Args:
        names: as in PEERS, each perhaps with "@label".
        settings: as --peer takes them, "NAME.SETTING=VALUE".

    Raises ConfigError for a name that nobody has, for a setting that a peer has not or lacks, and for a peer that is
    not installed.
    """
    given = _read(settings)
    known = {**PEERS, **{peer.name: (peer,) for group in PEERS.values() for peer in group}}
    found: dict[str, Peer] = {}
    for named in names:
        name, _, label = named.partition("@")
        if name not in known:
            raise ConfigError(f"unknown peer {name!r}; there is {', '.join(known)}", option="against")
        for peer in known[name]:
            whole = f"{peer.name}@{label}" if label else peer.name
            own = {**given.get(peer.name, {}), **given.get(whole, {})}
            found[whole] = _fitted(peer, whole, own)
    if unknown := given.keys() - found.keys() - {name.partition("@")[0] for name in found}:
        raise ConfigError(f"--peer sets something of {min(unknown)}, which --against does not name", option="peer")
    return list(found.values())


def _read(settings: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for text in settings:
        path, equals, value = text.partition("=")
        name, dot, setting = path.rpartition(".")
        if not (equals and dot and name and setting):
            raise ConfigError(f"--peer takes NAME.SETTING=VALUE, got {text!r}", option="peer")
        found.setdefault(name, {})[setting] = value
    return found


def _fitted(peer: Peer, name: str, given: Mapping[str, str]) -> Peer:
    for setting in given:
        if setting not in peer.settings:
            has = ", ".join(f"{each} ({what})" for each, what in peer.settings.items()) or "none"
            raise ConfigError(f"{name} has no setting {setting!r}; it has {has}", option="peer")
    for setting in peer.needed:
        if setting not in given:
            said = f"{name} needs --peer {name}.{setting}=..: {peer.settings[setting]}"
            raise ConfigError(said, option="peer")
    if peer.package and importlib.util.find_spec(peer.package) is None:
        raise ConfigError(f"{name} needs the package {peer.package}, which is not installed", option="against")
    for setting in ("python", "server"):
        if setting in given and shutil.which(str(Path(given[setting]).expanduser())) is None:
            raise ConfigError(f"--peer {name}.{setting}: {given[setting]} is no program", option="peer")
    return replace(peer, name=name, given=given)
