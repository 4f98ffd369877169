"""ConfigFile: values are parsed as those of flags; wrong keys and values are problems."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.settings import settings
from chairlift.cli.settings.config_file import ConfigFile, read_config
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.core.errors import ConfigError

ALL = {setting.dest: setting for title, group in settings.GROUPS if title != "workload" for setting in group}


def read_text_as_file(folder: Path, text: str) -> ConfigFile:
    path = folder / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    return read_config(str(path))


def problems(folder: Path, text: str) -> list[tuple[int, str]]:
    return [(problem.line, problem.message) for problem in read_text_as_file(folder, text).problems]


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
def test_values_are_parsed_as_the_text_of_their_flag(tmp_path: Path, text: str, key: str, value: Any) -> None:
    file = read_text_as_file(tmp_path, text).check()
    read = file.read(ALL[key])
    assert read is not None and read[0] == value and type(read[0]) is type(value)
    assert read[1].startswith(f"{file.path} line ")


@pytest.mark.parametrize("text", ["port: null", "port: ~", "port:", "seed: 1"])
def test_null_and_nothing_are_the_default(tmp_path: Path, text: str) -> None:
    assert read_text_as_file(tmp_path, text).check().read(ALL["port"]) is None


@pytest.mark.parametrize(("text", "line", "message"), [
    ("port: 1\nmax_batch_tokns: 5", 2, "unknown key 'max_batch_tokns'; did you mean 'max_batch_tokens'?"),
    ("max-batch-tokns: 5", 1, "unknown key 'max-batch-tokns'; did you mean 'max_batch_tokens'?"),
    ("drain_seconds: 5", 1, "unknown key 'drain_seconds'; did you mean 'drain_timeout'?"),
    ("max-num-seqs: 5", 1, "unknown key 'max-num-seqs', a flag of vLLM; the key here is 'max_running_requests'"),
    ("ssl_keyfile: k", 1, "unknown key 'ssl_keyfile', a flag of vLLM, SGLang, llama.cpp; the key here is 'tls_key'"),
    ("CHAIRLIFT_PORT: 5", 1, "unknown key 'CHAIRLIFT_PORT'; did you mean 'port'?"),
    ("xyzzy: 5", 1, "unknown key 'xyzzy'; `chairlift config show` lists the keys"),
    ("config: a.yaml", 1, "unknown key 'config'"),
    ("<<: {port: 5}", 1, "unknown key '<<'"),
    ("nonsense: ~", 1, "unknown key 'nonsense'"),
    ("server:\n  port: 5", 1, "a settings file has no sections; move the keys under 'server' to the top level"),
    ("api_key: sk-1", 1,
     "'api_key' is a secret, which a settings file must not hold; set key_file, or the variable CHAIRLIFT_API_KEY"),
    ("admin-key: sk-1", 1, "'admin-key' is a secret"),
    ("port: 5\nport: 6", 2, "the key 'port' is already in line 1; remove one of them"),
    ("max_queue_wait: 5\nmax-queue-wait: 5", 2, "the key 'max-queue-wait' is already in line 1"),
    ("port: ~\nport: 6", 2, "the key 'port' is already in line 1"),
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
    ("tenant_weights: {a: x}", 1, "tenant_weights must be pairs of name and share such as gold=2,silver=1, got 'a=x'"),
    ("tenant_weights: {}", 1, "tenant_weights must be shares by name"),
    ("tenant_weights: [a]", 1, "tenant_weights must be shares by name, got a list [a]"),
    ("structured: {choice: ['a|b']}", 1, "structured must be json_object, or"),
    ("structured: {json_schema: {type: object}}", 1, "structured must be json_object, or"),
    ("structured: {xml: a}", 1, "structured must be json_object or one of"),
    ("log_level: loud", 1, "log_level must be one of debug, info, warning, error, got 'loud'"),
    ("revision: !!python/name:os.system", 1, "the tag !!python/name:os.system is not allowed"),
])  # fmt: skip
def test_a_problem_has_a_line_and_a_remedy(tmp_path: Path, text: str, line: int, message: str) -> None:
    (problem,) = problems(tmp_path, text)
    assert problem[0] == line and problem[1].startswith(message)


def test_the_value_of_a_secret_is_not_quoted(tmp_path: Path) -> None:
    assert "sk-1" not in str(problems(tmp_path, "api_key: sk-1\nopenai_token: sk-1\nadmin_key: [sk-1]"))


def test_long_values_are_shortened_in_messages(tmp_path: Path) -> None:
    long = "x" * 5000
    for text in (f"port: {long}", f"{long}: 1", f"host: [{long}]", f"{'y' * 200}: 1\n{'y' * 200}: 2"):
        assert all(len(message) < 500 for _, message in problems(tmp_path, text))


def test_problems_are_in_the_order_of_lines(tmp_path: Path) -> None:
    problem = problems(tmp_path, "port: x\nhost: a\nseed: y\nprot: 1\nport: 5\n")
    assert [line for line, _ in problem] == [1, 3, 4, 5]


def test_check_raises_the_first_problem_with_the_number_of_others(tmp_path: Path) -> None:
    file = read_text_as_file(tmp_path, "port: 1\nport: 2\nprot: 1\n")
    with pytest.raises(ConfigError) as caught:
        file.check()
    assert caught.value.message == (
        f"{file.path} line 2: the key 'port' is already in line 1; remove one of them "
        f"(and 1 more; `chairlift config validate {file.path}` lists them)"
    )
    with pytest.raises(ConfigError, match=r"nowhere.yaml: the file cannot be read: No such file"):
        read_config(str(tmp_path / "nowhere.yaml")).check()


def test_two_settings_may_share_a_key_with_different_parsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value is valid when one of the settings can parse it; reading the other one is an error."""
    text = Setting(name="seed", help="")
    monkeypatch.setattr(settings, "GROUPS", (("a", [ALL["seed"]]), ("b", [text])))
    file = read_text_as_file(tmp_path, "seed: abc").check()
    assert file.read(text) == ("abc", f"{file.path} line 1")
    with pytest.raises(argparse.ArgumentTypeError, match=r"serve.yaml line 1: seed must be an integer, got 'abc'"):
        file.read(ALL["seed"])
