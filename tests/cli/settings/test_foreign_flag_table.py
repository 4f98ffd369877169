"""FOREIGN_FLAGS: every row does what the table says, with the parser of the commands."""

import argparse
import shlex
from typing import Any

import pytest

from chairlift.cli.arg_parser import UsageError
from chairlift.cli.command_line import build_parser
from chairlift.cli.settings.foreign_flag import LLAMA_CPP, OLLAMA, SGLANG, VLLM, ForeignFlag
from chairlift.cli.settings.foreign_flag_actions import merge_entries, merge_model
from chairlift.cli.settings.foreign_flag_table import (
    ALIASES,
    FOREIGN_FLAGS,
    REJECTED,
    SAME_NAMES,
    SOME_VALUES,
    WITHOUT_EFFECT,
    find_foreign_flag,
)
from chairlift.cli.settings.resolve_settings import FLAG, ResolvedSetting, resolve
from chairlift.core.foreign_options import OptionEffect
from chairlift.llm.options import Options
from chairlift.llm.vllm_compat.vllm_options import VLLM_OPTIONS
from support_parsers import leaf_parsers
from support_shares import for_each

PARSERS = {parser.prog.removeprefix("chairlift "): parser for parser in leaf_parsers(build_parser())}

ALIAS_VALUES: dict[str, tuple[str, object]] = {
    "-m": ("folder", "folder"), "--model-path": ("folder", "folder"), "-hf": ("user/repo:Q8_0", "user/repo:Q8_0"),
    "--hf-repo": ("user/repo", "user/repo"), "-hff": ("a.gguf", "a.gguf"), "--tokenizer-path": ("folder", "folder"),
    "--max-num-seqs": ("8", 8), "-np": ("8", 8),
    "--parallel": ("8", 8), "--max-num-batched-tokens": ("8K", 8192), "-b": ("512", 512), "--batch-size": ("512", 512),
    "--chunked-prefill-size": ("512", 512), "--long-prefill-token-threshold": ("64", 64), "-c": ("4096", 4096),
    "--ctx-size": ("4096", 4096), "--context-length": ("8k", 8000), "--gpu-memory-utilization": ("0.9", 0.9),
    "--mem-fraction-static": ("1", 1.0), "--kv-cache-memory-bytes": ("2G", 2 << 30),
    "--num-gpu-blocks-override": ("99", 99), "--page-size": ("32", 32),
    "--otlp-traces-endpoint": ("http://c:4317", "http://c:4317"), "--disable-radix-cache": ("", False),
    "--schedule-policy": ("lpm", "cache_aware"), "--max-queued-requests": ("7", 7), "--async-scheduling": ("", True),
    "--no-async-scheduling": ("", False), "--disable-overlap-schedule": ("", False),
    "--speculative-algorithm": ("STANDALONE", {"method": "draft_model"}),
    "--speculative-num-draft-tokens": ("4", {"num_speculative_tokens": 4}),
    "--speculative-draft-model-path": ("small", {"model": "small"}),
    "--speculative-ngram-min-match-window-size": ("2", {"prompt_lookup_min": 2}),
    "--speculative-ngram-max-match-window-size": ("9", {"prompt_lookup_max": 9}),
    "--spec-type": ("ngram-mod", {"method": "suffix"}),
    **dict.fromkeys(("--spec-draft-n-max", "--draft-max", "--draft", "--draft-n"),
                    ("3", {"num_speculative_tokens": 3})),
    **dict.fromkeys(
        ("-md", "--model-draft", "--draft-model", "--spec-draft-model", "-hfd", "--hf-repo-draft", "--spec-draft-hf"),
        ("small", {"model": "small"}),
    ),
    "--lookup-ngram-min": ("2", {"prompt_lookup_min": 2}),
    "--enforce-eager": ("", "off"), "--disable-cuda-graph": ("", "off"),
    "--disable-frontend-multiprocessing": ("", "inline"), "--watchdog-timeout": ("300", 300.0),
    "-t": ("4", 4), "--threads": ("4", 4),
    "-tp": ("2", 2), "--tp-size": ("2", 2), "--tp": ("4", 4), "--enable-deterministic-inference": ("", True),
    "-a": ("toy", ["toy"]), "--alias": ("toy", ["toy"]), "--random-seed": ("3", 3), "-s": ("3", 3),
    "--ssl-keyfile": ("k", "k"), "--ssl-key-file": ("k", "k"), "--ssl-certfile": ("c", "c"),
    "--ssl-cert-file": ("c", "c"), "--ssl-ca-certs": ("ca", "ca"), "--chat-template-file": ("x.jinja", "x.jinja"),
    "--chat-template-kwargs": ('{"enable_thinking": false}', {"enable_thinking": False}),
    "--reasoning-format": ("deepseek", "auto"),
    "--allowed-origins": ('["a", "b"]', ["a", "b"]),
    "--uvicorn-log-level": ("trace", "debug"), "--log-level-http": ("critical", "error"),
    "--enable-log-requests": ("", "info"), "--log-requests": ("", "info"), "--disable-log-stats": ("", 0),
    "-n": ("9", 9), "--predict": ("9", 9),
    "--n-predict": ("9", 9), "--temp": ("0.5", 0.5), "--repeat-penalty": ("1.1", 1.1),
}  # fmt: skip
"""Every flag of an alias, with a value as text and as the setting gets it; a switch has no text."""


def parse(command: str, *words: str) -> argparse.Namespace:
    parser = PARSERS[command]
    arguments, unknown = parser.parse_known_args([*words])
    assert unknown == []
    if hasattr(arguments, "model"):
        merge_model(arguments)
    merge_entries(arguments)
    return arguments


def command_with(row: ForeignFlag) -> str:
    """Return the command that has the setting of an alias."""
    return next(
        name for name in ("serve", "generate") if row.option.setting in {each.dest for each in PARSERS[name].settings}
    )  # fmt: skip


def pairs(rows: tuple[ForeignFlag, ...]) -> list[Any]:
    return [pytest.param(row, flag, id=flag) for row in rows for flag in row.flags]


def test_every_flag_of_an_alias_has_a_value_here() -> None:
    assert list(ALIAS_VALUES) == [flag for row in ALIASES for flag in row.flags]


@pytest.mark.share(20)
@pytest.mark.parametrize(("row", "flag"), pairs(ALIASES))
def test_an_alias_sets_its_setting(row: ForeignFlag, flag: str) -> None:
    text, value = ALIAS_VALUES[flag]
    command = command_with(row)
    arguments = parse(command, flag, *([text] if text else []))
    got = getattr(arguments, row.option.setting)
    assert got == value and type(got) is type(value)
    if row.option.setting == "model":
        return
    setting = next(each for each in PARSERS[command].settings if each.dest == row.option.setting)
    resolved = resolve(setting, arguments, {})
    assert resolved == ResolvedSetting(value, FLAG, flag)
    assert getattr(arguments, "flag_notes", []) == (
        [f"{flag} is {setting.flag}: {row.option.reason}"] if row.option.reason else []
    )


@pytest.mark.share(20)
@pytest.mark.parametrize(("row", "flag"), pairs(WITHOUT_EFFECT))
@pytest.mark.parametrize("command", ["serve", "generate", "config show"])
def test_a_flag_without_effect_says_so(row: ForeignFlag, flag: str, command: str) -> None:
    before, after = vars(parse(command)), vars(parse(command, flag, *(["x"] if row.metavar else [])))
    assert after.pop("flag_notes") == [f"{flag} has no effect: {row.option.reason}"]
    assert before == after


@pytest.mark.parametrize(("row", "flag"), pairs(SOME_VALUES))
def test_a_flag_of_which_some_values_are_accepted(row: ForeignFlag, flag: str) -> None:
    for value in row.option.neutral:
        assert vars(parse("serve", flag, value)) == vars(parse("serve"))
    with pytest.raises(UsageError) as caught:
        parse("serve", flag, "other")
    assert str(caught.value) == f"{flag} other is not supported: {row.option.reason}"


@pytest.mark.share(20)
@pytest.mark.parametrize(("row", "flag"), pairs(REJECTED))
def test_a_rejected_flag_has_a_reason_with_or_without_a_value(row: ForeignFlag, flag: str) -> None:
    for words in ([flag], [flag, "x"], ["MODEL", flag, "--port", "1"]):
        with pytest.raises(UsageError) as caught:
            parse("serve", *words)
        assert str(caught.value) == f"{flag} is not supported: {row.option.reason}"


def test_every_row_is_complete() -> None:
    for row in FOREIGN_FLAGS:
        assert row.systems and set(row.systems) <= {VLLM, SGLANG, LLAMA_CPP, OLLAMA}, row
        assert all(flag.startswith("-") for flag in row.flags)
        assert row.option.setting or row.option.reason, row
        assert not row.option.reason.endswith(".") and len(row.option.reason) <= 110, row
    serve = PARSERS["serve"]._option_string_actions
    assert all(flag in serve for row in FOREIGN_FLAGS for flag in row.flags)


def test_the_text_of_a_row_names_only_flags_that_exist() -> None:
    serve = PARSERS["serve"]._option_string_actions
    for row in FOREIGN_FLAGS:
        words = [word.strip(";,") for word in row.option.reason.split() if word.startswith("--")]
        assert all(word in serve and word not in row.flags for word in words), row.option.reason


def test_flags_with_the_same_name_are_those_of_serve() -> None:
    serve = PARSERS["serve"]._option_string_actions
    assert all(flag in serve and serve[flag].help != argparse.SUPPRESS for flag in SAME_NAMES)
    assert not set(SAME_NAMES) & {flag for row in FOREIGN_FLAGS for flag in row.flags}


@pytest.mark.parametrize("line", [
    "--model m --host 0.0.0.0 --port 8000 --dtype half --max-model-len 32k --gpu-memory-utilization 0.9 "
    "--max-num-seqs 64 --tensor-parallel-size 1 --enable-prefix-caching --served-model-name a --api-key k --seed 1 "
    "--max-num-batched-tokens 8192 --swap-space 4 --enforce-eager --disable-log-requests --generation-config auto "
    "--scheduling-policy fcfs --enable-auto-tool-choice --no-enable-prefix-caching --uvicorn-log-level warning "
    "--trust-remote-code --disable-log-stats --tool-call-parser hermes --reasoning-parser qwen3",
    "--model-path m --context-length 8192 --mem-fraction-static 0.8 --max-running-requests 32 --tp 1 --port 30000 "
    "--schedule-policy fcfs --disable-cuda-graph --chunked-prefill-size 512 --random-seed 3 --host 0.0.0.0",
    "-m m -c 4096 -np 4 -t 8 -b 512 -ngl 0 --host 127.0.0.1 --port 8080 --jinja -fa on --alias toy --metrics",
])  # fmt: skip
def test_a_command_line_of_another_server_is_accepted(line: str) -> None:
    assert parse("serve", *shlex.split(line)).model == "m"


@for_each(("line", "model", "names"), [
    ("m --served-model-name a b", "m", ["a", "b"]),
    ("--model m --served-model-name a b --port 1", "m", ["a", "b"]),
    ("--served-model-name a b --model m", "m", ["a", "b"]),
    ("--served-model-name a b --port 1 m", "m", ["a", "b"]),
    ("--served-model-name a --port 1", None, ["a"]),
    ("--served-model-name a m", "m", ["a"]),
    ("--served-model-name a m --served-model-name b", "m", ["a", "b"]),
    ("--served-model-name a b m --alias c", "m", ["a", "b", "c"]),
])  # fmt: skip
def test_several_names_behind_one_flag_leave_the_model_its_place(
    line: str, model: str | None, names: list[str]
) -> None:
    arguments = parse("serve", *shlex.split(line))
    assert arguments.model == model and arguments.served_model_name == names


SERVER_ALONE = (
    "--allow-credentials --allowed-headers --allowed-methods --allowed-origins --api-server-count "
    "--chat-template-content-format --disable-fastapi-docs --disable-frontend-multiprocessing "
    "--disable-uvicorn-access-log --enable-auto-tool-choice --enable-prompt-tokens-details --headless "
    "--log-config-file --lora-modules --max-log-len --middleware --reasoning-parser-plugin --response-role "
    "--return-tokens-as-token-ids --root-path --ssl-ca-certs --ssl-cert-reqs --ssl-certfile --ssl-keyfile "
    "--stream-interval "
    "--tool-parser-plugin --uds --uvicorn-log-level -tp"
)
"""vLLM's flags of the HTTP server, which its LLM class does not have as options, and a short name."""

SERVER_SETTINGS = {"served_model_name", "disable_log_stats", "enable_log_requests", "otlp_traces_endpoint"}
"""vLLM's options that set something of the server, which an LLM does not have."""


@pytest.mark.share(20)
@pytest.mark.parametrize("name", VLLM_OPTIONS)
def test_an_option_of_python_means_the_same_as_a_flag(name: str) -> None:
    """vLLM's LLM(max_num_seqs=8) and --max-num-seqs 8 set the same, or both have no effect, or both are refused."""
    option, flag = VLLM_OPTIONS[name], "--" + name.replace("_", "-")
    if name in SERVER_SETTINGS:
        assert option.effect is OptionEffect.NONE
        assert flag in SAME_NAMES or any(flag in row.flags for row in ALIASES)
        return
    row = next(each for each in FOREIGN_FLAGS if flag in each.flags)
    assert VLLM in row.systems and row.option.setting == option.setting
    if option.setting:
        return
    is_accepted = option.effect is OptionEffect.NONE or any(value is True for value in option.neutral)
    if row.is_rejected or not row.metavar:
        assert row.is_rejected is not is_accepted
    else:
        values = [str(value) for value in option.neutral if type(value) in (int, str) and value != ""]
        assert row.option.neutral == (() if is_accepted else tuple(values))


def test_a_flag_of_vllms_engine_is_also_an_option_of_python() -> None:
    first = {row.flags[0] for row in FOREIGN_FLAGS if VLLM in row.systems} - {*SERVER_ALONE.split()}
    options = {flag.removeprefix("--no-").removeprefix("--").replace("-", "_") for flag in first}
    assert options <= {*VLLM_OPTIONS, *Options.__annotations__}


def test_a_key_of_a_settings_file_is_found_by_its_flag() -> None:
    row = find_foreign_flag("max_num_seqs")
    assert row is not None and row.option.setting == "max_running_requests"
    assert find_foreign_flag("port") is None and find_foreign_flag("m") is None
