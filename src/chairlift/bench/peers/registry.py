"""PEERS: the engines that --against can name, how each is run, and its settings for --peer.

A peer can be named several times with different labels (`openvino@int8`), each with its own settings. A setting of a
name without a label applies to all its labels.
"""

import importlib.util
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chairlift.core.errors import ConfigError

OWN_NAME = "chairlift"


def own_command(module: str, *words: str) -> tuple[str, ...]:
    """Return the command of a module of chairlift.bench that runs a specification (subprocess_run.py)."""
    return (sys.executable, "-P", "-m", f"chairlift.bench.{module}", *words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another engine that can run a workload.

    Attributes:
        name: its name in tables and reports.
        command: a program and its first arguments; it takes a specification file and a result file (subprocess_run.py).
        package: Python package that it needs here; "" when it runs in another Python or as its own program.
        settings: the settings that it accepts, each with its description.
        required: names of the required settings.
        setting_values: the values that --peer gave, by setting.
    """

    name: str
    command: tuple[str, ...]
    package: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    setting_values: Mapping[str, str] = field(default_factory=dict)


_TRANSFORMERS = tuple(
    Peer(
        name=f"transformers-{mode}", command=own_command("peers.transformers_peer", mode), package="transformers",
    )
    for mode in ("static", "continuous", "single")
)  # fmt: skip
_PYTHON = {"python": "the interpreter that has the engine (default: this one)"}

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
            name="openvino", command=own_command("peers.external_python", "openvino"), required=("model",),
            settings={
                **_PYTHON, "model": "the folder that optimum-intel exported", "precision": "bf16, f32 or f16",
                "kv_precision": "of its KV cache", "kv_gib": "for its KV cache", "max_num_seqs": "at once",
                "max_num_batched_tokens": "in a step",
                "quantized_group": "inputs that are rounded to int8 together (0: none)",
            },
        ),
    ),
    "llama.cpp": (
        Peer(
            name="llama.cpp", command=own_command("peers.llama_cpp"), required=("model",),
            settings={
                "model": "a GGUF file", "server": "its llama-server (default: the one on PATH)",
                "slots": "requests at once", "context": "tokens of each",
            },
        ),
    ),
}  # fmt: skip
"""Peers by the names that --against takes; a name can stand for several modes of one engine."""


def peers_of(names: Sequence[str], settings: Sequence[str] = ()) -> list[Peer]:
    """Return the peers of these names with their settings.

    Args:
        names: names of PEERS or of a single peer, each optionally with "@label".
        settings: values of --peer, "NAME.SETTING=VALUE".

    Raises ConfigError for an unknown name, for an unknown or missing setting, and for a peer that is not installed.
    """
    setting_values = _parse_settings(settings)
    by_name = {**PEERS, **{peer.name: (peer,) for group in PEERS.values() for peer in group}}
    selected: dict[str, Peer] = {}
    for full_name in names:
        name, _, label = full_name.partition("@")
        if name not in by_name:
            raise ConfigError(f"unknown peer {name!r}; available are {', '.join(by_name)}", option="against")
        for peer in by_name[name]:
            whole = f"{peer.name}@{label}" if label else peer.name
            own = {**setting_values.get(peer.name, {}), **setting_values.get(whole, {})}
            selected[whole] = _with_settings(peer, whole, own)
    if unknown := setting_values.keys() - selected.keys() - {name.partition("@")[0] for name in selected}:
        raise ConfigError(f"--peer has a setting of {min(unknown)}, which --against does not name", option="peer")
    return list(selected.values())


def _parse_settings(settings: Sequence[str]) -> dict[str, dict[str, str]]:
    selected: dict[str, dict[str, str]] = {}
    for text in settings:
        path, equals, value = text.partition("=")
        name, dot, setting = path.rpartition(".")
        if not (equals and dot and name and setting):
            raise ConfigError(f"--peer must be NAME.SETTING=VALUE, got {text!r}", option="peer")
        selected.setdefault(name, {})[setting] = value
    return selected


def _with_settings(peer: Peer, name: str, setting_values: Mapping[str, str]) -> Peer:
    for setting in setting_values:
        if setting not in peer.settings:
            has = ", ".join(f"{each} ({what})" for each, what in peer.settings.items()) or "none"
            raise ConfigError(f"{name} has no setting {setting!r}; available are {has}", option="peer")
    for setting in peer.required:
        if setting not in setting_values:
            message = f"{name} needs --peer {name}.{setting}=..: {peer.settings[setting]}"
            raise ConfigError(message, option="peer")
    if peer.package and importlib.util.find_spec(peer.package) is None:
        raise ConfigError(f"{name} needs the package {peer.package}, which is not installed", option="against")
    for setting in ("python", "server"):
        if setting in setting_values and shutil.which(str(Path(setting_values[setting]).expanduser())) is None:
            raise ConfigError(f"--peer {name}.{setting}: {setting_values[setting]} is not a program", option="peer")
    return replace(peer, name=name, setting_values=setting_values)
