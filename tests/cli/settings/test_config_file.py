"""ConfigFile: keys and values of a file, each refused with its line and what was meant, and all of them at once."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.settings import settings
from chairlift.cli.settings.config_file import ConfigFile, read_config
from chairlift.core.errors import ConfigError

ALL = {setting.dest: setting for title, group in settings.GROUPS if title != "workload" for setting in group}


def written(folder: Path, text: str) -> ConfigFile:
    path = folder / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    return read_config(str(path))


def problems(folder: Path, text: str) -> list[tuple[int, str]]:
    return [(problem.line, problem.said) for problem in written(folder, text).problems]


@pytest.mark.parametrize(("text", "key", "value"), [
    ("port: 8080", "port", 8080), ('port: "8080"', "port", 8080), ("temperature: 1e-3", "temperature", 0.001),
    ("enable-prefix-caching: off", "enable_prefix_caching", False), ("overlap: yes", "overlap", True),
    ("overlap: 'true'", "overlap", True), ("overlap: 1", "overlap", True),
    ("max_body_bytes: 4MB", "max_body_bytes", 4_000_000), ("max_memory: 0.5", "max_memory", 0.5),
    ("max_memory: 1.5GiB", "max_memory", 3 * 2**29), ("drain_timeout: 2.5", "drain_timeout", 2.5),
    ("revision: 0123", "revision", "0123"), ("revision: 2024-01-01", "revision", "2024-01-01"),
    ("scheduling_policy: no", "scheduling_policy", "no"), ('host: ""', "host", ""),
    ("log_level: info", "log_level", "info"),
    ("served_model_name: [no, 1.0, 'a,b']", "served_model_name", ["no", "1.0", "a,b"]),
    ("served_model_name: one", "served_model_name", ["one"]), ("stop: []", "stop", []),
    ("stop: |\n  a\n  b\n", "stop", ["a\nb\n"]), ("metric_alias: [vllm]", "metric_alias", ["vllm"]),
    ("stop_token_ids: [1, 2]", "stop_token_ids", (1, 2)), ("stop_token_ids: 1,2", "stop_token_ids", (1, 2)),
    ("bad_words_ids: [[1, 2], [3]]", "bad_words_ids", [(1, 2), (3,)]),
    ("tenant_weights: {gold: 2, others: 0.5}", "tenant_weights", {"gold": 2.0, "others": 0.5}),
    ("tenant_weights: gold=2", "tenant_weights", {"gold": 2.0}),
    ("logit_bias: {5: -1, 6: 2.5}", "logit_bias", {5: -1.0, 6: 2.5}),
    ("logits_processor_factories:\n  a: m:f\n", "logits_processor_factories", {"a": "m:f"}),
    ("structured: {regex: '[0-9]+'}", "structured", {"regex": "[0-9]+"}),
    ("structured: {choice: [a, b]}", "structured", {"choice": ["a", "b"]}),
    ("structured: {json_object: true}", "structured", {"json_object": True}),
    ("model: owner/name", "model", "owner/name"), ("port: &a 5\nseed: *a", "seed", 5),
])  # fmt: skip
def test_values_are_read_as_the_text_of_their_flag(tmp_path: Path, text: str, key: str, value: Any) -> None:
    file = written(tmp_path, text).check()
    read = file.read(ALL[key])
    assert read is not None and read[0] == value and type(read[0]) is type(value)
    assert read[1].startswith(f"{file.path} line ")


@pytest.mark.parametrize("text", ["port: null", "port: ~", "port:", "seed: 1"])
def test_null_and_nothing_are_the_default(tmp_path: Path, text: str) -> None:
    assert written(tmp_path, text).check().read(ALL["port"]) is None


@pytest.mark.parametrize(("text", "line", "said"), [
    ("port: 1\nmax_batch_tokns: 5", 2, "unknown key 'max_batch_tokns', did you mean 'max_batch_tokens'?"),
    ("max-batch-tokns: 5", 1, "unknown key 'max-batch-tokns', did you mean 'max_batch_tokens'?"),
    ("drain_seconds: 5", 1, "unknown key 'drain_seconds', did you mean 'drain_timeout'?"),
    ("CHAIRLIFT_PORT: 5", 1, "unknown key 'CHAIRLIFT_PORT', did you mean 'port'?"),
    ("xyzzy: 5", 1, "unknown key 'xyzzy'; `chairlift config show` lists what there is"),
    ("config: a.yaml", 1, "unknown key 'config'"),
    ("<<: {port: 5}", 1, "unknown key '<<'"),
    ("nonsense: ~", 1, "unknown key 'nonsense'"),
    ("server:\n  port: 5", 1, "there are no sections: what stands under 'server' goes to the margin"),
    ("api_key: sk-1", 1, "'api_key': no key belongs in here; give key_file, or CHAIRLIFT_API_KEY in the environment"),
    ("admin-key: sk-1", 1, "'admin-key': no key belongs in here"),
    ("port: 5\nport: 6", 2, "'port' is already in line 1; one of them has to go"),
    ("max_queue_wait: 5\nmax-queue-wait: 5", 2, "'max-queue-wait' is already in line 1"),
    ("port: ~\nport: 6", 2, "'port' is already in line 1"),
    ("port: x", 1, "port must be an integer, got 'x'"), ("port: 1.5", 1, "port must be an integer, got '1.5'"),
    ("port: true", 1, "port must be an integer, got 'true'"), ("port: '~'", 1, "port must be an integer, got '~'"),
    ("port:\n  - 5", 2, "port must be an integer, got a list [5]"),
    ("port: {a: 5}", 1, "port must be an integer, got a mapping {a: 5}"),
    ("drain_timeout: 30s", 1, "drain_timeout must be a number, got '30s'"),
    ("overlap: maybe", 1, "overlap must be one of 1, true, yes, on"),
    ("host: [a]", 1, "host must be text, got a list [a]"),
    ("stop: [a, [b]]", 1, "stop must be a list of text, got a list [b]"),
    ("stop: {a: b}", 1, "stop must be a list of text, got a mapping {a: b}"),
    ("stop:\n- a\n- ~", 3, "stop must be a list of text, got null"),
    ("stop_token_ids: ['1,2']", 1, "stop_token_ids must be token ids, got a list [1,2]"),
    ("stop_token_ids: []", 1, "stop_token_ids must be token ids, got a list []"),
    ("tenant_weights: {'a=b': 1}", 1, "tenant_weights must be shares by name, got a mapping"),
    ("tenant_weights: {a: [1]}", 1, "tenant_weights must be shares by name"),
    ("tenant_weights: {a: x}", 1, "tenant_weights must be a number, got 'x'"),
    ("tenant_weights: {}", 1, "tenant_weights must be shares by name"),
    ("tenant_weights: [a]", 1, "tenant_weights must be shares by name, got a list [a]"),
    ("structured: {choice: ['a|b']}", 1, "structured must be json_object, or"),
    ("structured: {json_schema: {type: object}}", 1, "structured must be json_object, or"),
    ("structured: {xml: a}", 1, "structured must be json_object or one of"),
    ("log_level: loud", 1, "log_level must be one of debug, info, warning, error, got 'loud'"),
    ("revision: !!python/name:os.system", 1, "the tag !!python/name:os.system is not taken"),
])  # fmt: skip
def test_what_cannot_be_is_told_with_line_and_remedy(tmp_path: Path, text: str, line: int, said: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found[0] == line and found[1].startswith(said)


def test_a_key_is_never_repeated(tmp_path: Path) -> None:
    assert "sk-1" not in str(problems(tmp_path, "api_key: sk-1\nopenai_token: sk-1\nadmin_key: [sk-1]"))


def test_long_values_make_no_long_sentences(tmp_path: Path) -> None:
    long = "x" * 5000
    for text in (f"port: {long}", f"{long}: 1", f"host: [{long}]", f"{'y' * 200}: 1\n{'y' * 200}: 2"):
        assert all(len(said) < 500 for _, said in problems(tmp_path, text))


def test_every_problem_is_found_in_the_order_of_lines(tmp_path: Path) -> None:
    found = problems(tmp_path, "port: x\nhost: a\nseed: y\nprot: 1\nport: 5\n")
    assert [line for line, _ in found] == [1, 3, 4, 5]


def test_a_command_is_told_the_first_and_how_many_more(tmp_path: Path) -> None:
    file = written(tmp_path, "port: 1\nport: 2\nprot: 1\n")
    with pytest.raises(ConfigError) as caught:
        file.check()
    assert caught.value.message == (
        f"{file.path} line 2: 'port' is already in line 1; one of them has to go "
        f"(and 1 more: chairlift config validate {file.path})"
    )
    with pytest.raises(ConfigError, match=r"nowhere.yaml: cannot be read: No such file"):
        read_config(str(tmp_path / "nowhere.yaml")).check()


def test_one_name_may_belong_to_settings_of_two_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that one of them takes is good; who takes it not says so when it is asked for."""
    text = settings.Setting(name="seed", help="")
    monkeypatch.setattr(settings, "GROUPS", (("a", [ALL["seed"]]), ("b", [text])))
    file = written(tmp_path, "seed: abc").check()
    assert file.read(text) == ("abc", f"{file.path} line 1")
    with pytest.raises(argparse.ArgumentTypeError, match=r"serve.yaml line 1: seed must be an integer, got 'abc'"):
        file.read(ALL["seed"])
