"""PEERS: peers by name and label, their settings, and errors in one sentence."""

import sys

import pytest

from chairlift.bench.peers import registry
from chairlift.bench.peers.registry import PEERS, Peer, peers_of
from chairlift.core.errors import ConfigError
from support_shares import for_each


def test_a_name_stands_for_all_ways_to_run_a_peer() -> None:
    both = ["transformers-static", "transformers-continuous"]
    assert [peer.name for peer in peers_of(["transformers"])] == both
    assert [peer.name for peer in peers_of([both[1]])] == both[1:]
    assert [peer.name for peer in peers_of([both[1], "transformers"])] == both[::-1]
    assert [peer.name for peer in peers_of(["transformers-single", "vllm"])] == ["transformers-single", "vllm"]


def test_a_label_makes_one_more_of_a_kind_with_settings_of_its_own() -> None:
    settings = ["openvino.model=a", "openvino.kv_gib=2", "openvino@int8.model=b=c", f"openvino.python={sys.executable}"]
    plain, other = peers_of(["openvino", "openvino@int8"], settings)
    assert (plain.name, other.name) == ("openvino", "openvino@int8") and plain.command == other.command
    assert plain.setting_values == {"model": "a", "kv_gib": "2", "python": sys.executable}
    assert other.setting_values == {"model": "b=c", "kv_gib": "2", "python": sys.executable}


@for_each(
    ("names", "settings", "sentence"),
    [
        (["sglang"], [], "unknown peer 'sglang'; available are transformers, transformers-single, vllm, openvino"),
        (["vllm"], ["vllm.colour=red"], "vllm has no setting 'colour'; available are python \\(the interpreter"),
        (["transformers-static"], ["transformers-static.python=x"], "has no setting 'python'; available are none"),
        (["openvino"], [], r"openvino needs --peer openvino.model=..: the folder that optimum-intel exported"),
        (["llama.cpp@q8"], ["llama.cpp@q4.model=x"], r"llama.cpp@q8 needs --peer llama.cpp@q8.model=..: a GGUF file"),
        (["vllm"], ["openvino.model=x"], "--peer has a setting of openvino, which --against does not name"),
        (["vllm"], ["vllm"], "--peer must be NAME.SETTING=VALUE, got 'vllm'"),
        (["vllm"], ["vllm=3"], "--peer must be NAME.SETTING=VALUE, got 'vllm=3'"),
        (["vllm"], ["vllm.python=/no/such"], "--peer vllm.python: /no/such is not a program"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(names: list[str], settings: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        peers_of(names, settings)


def test_a_peer_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Peer(name="absent", command=(), package="no_such_package")
    monkeypatch.setattr(registry, "PEERS", {"absent": (absent,)})
    with pytest.raises(ConfigError, match="absent needs the package no_such_package, which is not installed"):
        peers_of(["absent"])


def test_every_required_setting_of_a_peer_is_one_of_its_settings() -> None:
    for group in PEERS.values():
        for peer in group:
            assert set(peer.required) <= set(peer.settings), peer.name
