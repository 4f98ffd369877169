"""build_service: model folders and options become services, over real tiny models; invalid ones are rejected."""

import json
import logging
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import support_text
from chairlift import LLM, AsyncLLM, SamplingParams, demo
from chairlift.core.errors import ChairliftError, ConfigError, InvalidRequest, ModelError, UnsupportedArchitecture
from chairlift.engine.client.process import ProcessClient
from chairlift.engine.config import SchedulerConfig, SpeculationConfig
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.llm.build import model_folder, prepare, runner_config, validate_options
from chairlift.llm.builtin_models import DEMO, RANDOM, no_model_given
from chairlift.llm.model_inspection import inspect_model
from chairlift.llm.options import Options
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.text.tokenizer import HFTokenizer
from support_gguf import smollm2_file
from support_gguf_models import write_gguf
from support_models import EOS_TOKEN_IDS, save_tiny, tiny_hf_model
from support_shares import for_each
from support_text import build_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=24)
PROMPTS = ["The lift never stops", "No request waits", "Die Gäste fahren 中文"]
VOCAB = {"vocab_size": 700}
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with a tokenizer, a chat template and greedy defaults."""
    path = save_tiny("llama", tmp_path_factory.mktemp("llama"), **VOCAB)
    support_text.save_tokenizer(path, *build_tokenizer("qwen"), template=TEMPLATE)
    return path


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record launches and closes of engine processes during prepare()."""
    events: list[str] = []

    class FakePrespawnedProcess:
        def __init__(self, modules: list[str]) -> None:
            events.append(f"launched {modules}")

        def close(self) -> None:
            events.append("closed")

    monkeypatch.setattr("chairlift.llm.launch_engine.PrespawnedProcess", FakePrespawnedProcess)
    return events


def test_a_process_is_launched_while_files_are_read_and_only_for_who_wants_one(
    folder: Path, launches: list[str]
) -> None:
    prepare(str(folder), {})
    assert launches == []
    prepared = prepare(str(folder), {"engine_mode": "process"})
    assert launches == ["launched ['chairlift.model.runner.torch_runner']"] and prepared.launched is not None
    prepared.close()
    assert launches[1:] == ["closed"]


def test_a_process_that_is_given_is_that_of_the_engine_and_closed_by_an_error(
    folder: Path, tmp_path: Path, launches: list[str]
) -> None:
    given: Any = SimpleNamespace(close=lambda: launches.append("closed"))
    assert prepare(str(folder), {"engine_mode": "process"}, launched=given).launched is given
    assert launches == []
    for model, wrong in ((tmp_path, {}), (folder, {"scheduling_policy": "none"})):
        with pytest.raises(ChairliftError):
            prepare(str(model), {"engine_mode": "process", **wrong}, launched=given)  # type: ignore[typeddict-item]
    assert launches == ["closed", "closed"]


def test_what_cannot_be_prepared_leaves_no_process(tmp_path: Path, launches: list[str]) -> None:
    with pytest.raises(ModelError):
        prepare(str(tmp_path), {"engine_mode": "process"})
    with pytest.raises(ConfigError):
        prepare(str(tmp_path), {"engine_mode": "process", "scheduling_policy": "none"})
    assert launches == ["launched ['chairlift.model.runner.torch_runner']", "closed"]


def test_who_only_asks_launches_nothing_and_who_cannot_start_leaves_nothing(
    folder: Path, tmp_path: Path, launches: list[str]
) -> None:
    assert prepare(str(folder), {"engine_mode": "process"}, starts=False).launched is None
    inspect_model(str(folder), {"engine_mode": "process"})
    assert launches == []
    with pytest.raises(ConfigError):
        prepare(str(folder), {"engine_mode": "process", "profile": str(tmp_path / "none" / "trace.json")}).start()
    assert launches[1:] == ["closed"]


def test_where_no_process_can_be_launched_early_the_start_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_start(*_: Any, **__: Any) -> None:
        raise BlockingIOError("no process")

    monkeypatch.setattr("subprocess.Popen", fail_to_start)
    prepared = prepare(str(folder), {"engine_mode": "process"})
    assert prepared.launched is None
    with pytest.raises(ChairliftError, match="no process"):
        prepared.start()


@pytest.mark.full
def test_the_engine_is_in_the_process_that_was_launched(folder: Path) -> None:
    prepared = prepare(str(folder), {"engine_mode": "process", "num_blocks": 16, "max_running_requests": 2})
    assert prepared.launched is not None and prepared.launched._process is not None
    pid = prepared.launched._process.pid
    client = prepared.start().client
    try:
        assert isinstance(client, ProcessClient) and client.process is not None and client.process.pid == pid
    finally:
        client.close()


def test_the_name_of_the_files_own_quantization_is_auto(folder: Path, tmp_path: Path) -> None:
    entry = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    quantized = copy_with_changes(folder, tmp_path / "quantized", config=entry)
    assert runner_config(quantized, {"quantization": "awq"}).quantization == "auto"
    with pytest.raises(ConfigError, match="'gptq' is that of another checkpoint: the model is quantized by awq"):
        runner_config(quantized, {"quantization": "gptq"})


def copy_with_changes(source: Path, target: Path, **files: dict[str, Any] | None) -> Path:
    """Copy a folder by links, with some JSON files changed (name without .json) or left out (None)."""
    target.mkdir()
    for path in source.iterdir():
        change = files.get(path.stem, {}) if path.suffix == ".json" else {}
        if change is None:
            continue
        if change:
            (target / path.name).write_text(json.dumps({**json.loads(path.read_text()), **change}))
        else:
            (target / path.name).symlink_to(path)
    return target


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, dtype="float64") as llm:
        yield llm
        assert llm.check_integrity() == []


def expected_greedy(prompt: list[int], max_tokens: int) -> list[int]:
    model = tiny_hf_model("llama", **VOCAB)
    out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=max_tokens, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


# -- a folder with everything ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_greedy_tokens_and_text_are_those_of_transformers_and_the_tokenizer(llm: LLM, folder: Path) -> None:
    tokenizer = support_text.HFTokenizer.load(folder)
    for prompt, result in zip(PROMPTS, llm.generate(PROMPTS, GREEDY, use_tqdm=False), strict=True):
        assert result.prompt_token_ids == tokenizer.encode(prompt)
        choice = result.outputs[0]
        assert choice.token_ids == expected_greedy(result.prompt_token_ids, 24)
        is_stopped = choice.token_ids[-1] in EOS_TOKEN_IDS
        assert choice.finish_reason == ("stop" if is_stopped else "length")
        assert choice.text == tokenizer.decode(choice.token_ids[:-1] if is_stopped else choice.token_ids)


def test_logprobs_hold_the_likeliest_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3)
    (result,) = llm.generate(PROMPTS[0], params, use_tqdm=False)
    for token, entry in zip(result.outputs[0].token_ids, result.outputs[0].token_logprobs or (), strict=True):
        assert entry.token_id == token == entry.top[0][0]
        assert entry.logprob == entry.top[0][1] < 0
        assert len(entry.top) == 3 and [value for _, value in entry.top] == sorted((v for _, v in entry.top))[::-1]


def test_chat_renders_the_folders_template(llm: LLM) -> None:
    (result,) = llm.chat([{"role": "user", "content": "hello"}], GREEDY, use_tqdm=False)
    assert result.prompt == "user: hello\n"
    assert result.outputs[0].token_ids == expected_greedy(result.prompt_token_ids, 24)


def test_the_report_tells_what_was_derived(llm: LLM) -> None:
    assert {"model", "device", "dtype", "num_blocks", "max_model_len"} <= llm.startup_report.keys()
    assert llm.startup_report["dtype"] == "float64"


@pytest.mark.full
def test_a_process_of_its_own_gives_the_same(llm: LLM, folder: Path) -> None:
    params = [SamplingParams(max_tokens=12, seed=number, logprobs=1) for number in range(3)]
    inline_results = llm.generate(PROMPTS, params, use_tqdm=False)
    with LLM(folder, dtype="float64", engine_mode="process", overlap=True, num_blocks=64) as other:
        process_results = other.generate(PROMPTS, params, use_tqdm=False)
        assert other.cache_state()["total_blocks"] == 64
        assert other.check_integrity() == [] and other.scheduler_state()["active_requests"] == 0
        assert other.startup_report["dtype"] == "float64"
    for inline_result, process_result in zip(inline_results, process_results, strict=True):
        assert inline_result.outputs[0].token_ids == process_result.outputs[0].token_ids
        assert inline_result.outputs[0].text == process_result.outputs[0].text
        pairs = zip(
            inline_result.outputs[0].token_logprobs or (), process_result.outputs[0].token_logprobs or (), strict=True
        )
        assert all(entry.logprob == pytest.approx(other_entry.logprob, rel=1e-9) for entry, other_entry in pairs)


def test_a_start_that_fails_in_a_process_is_the_same_typed_error(folder: Path, tmp_path: Path) -> None:
    broken = copy_with_changes(folder, tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    messages = []
    for client in ("inline", "process"):
        with pytest.raises(ModelError) as caught:
            LLM(broken, engine_mode=client)  # type: ignore[arg-type]
        messages.append(caught.value.message)
    assert messages[0] == messages[1] and "safetensors" in messages[0]


# -- the folder's own defaults -----------------------------------------------------------------------------------------


def test_generation_config_gives_defaults_that_a_request_can_override(folder: Path, tmp_path: Path) -> None:
    generation_config = {"do_sample": False, "eos_token_id": [2, 5], "max_new_tokens": 6, "temperature": 0.3}
    with LLM(copy_with_changes(folder, tmp_path / "own", generation_config=generation_config), dtype="float64") as llm:
        assert dict(llm.defaults.sampling) == {"temperature": 0.0}
        assert llm.defaults.eos_token_ids[:2] == (2, 5) and llm.defaults.max_tokens == 6
        ids = llm.generate(PROMPTS[:1], None, use_tqdm=False)[0]
        greedy = expected_greedy(ids.prompt_token_ids, 6)
        assert ids.outputs[0].token_ids == greedy
        sampled = llm.generate(PROMPTS[0], SamplingParams(temperature=2.0, seed=1, max_tokens=6), use_tqdm=False)[0]
        assert sampled.outputs[0].token_ids != greedy


def test_the_tokenizers_end_of_text_counts_where_the_folder_names_none(folder: Path, tmp_path: Path) -> None:
    (_, tokens) = build_tokenizer("qwen")
    bare = copy_with_changes(folder, tmp_path / "bare", generation_config=None, config={"eos_token_id": None})
    tokenizer = support_text.HFTokenizer.load(bare)
    assert tokens["eos_token"] == tokenizer.token_text(tokenizer.eos_token_ids[0])
    assert prepare(bare, {}).defaults.eos_token_ids == tokenizer.eos_token_ids


def test_a_folder_without_a_tokenizer_takes_ids_only(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = copy_with_changes(folder, tmp_path / "ids", tokenizer=None, tokenizer_config=None)
    with caplog.at_level(logging.WARNING, "chairlift"), LLM(bare, dtype="float64", num_blocks=64) as llm:
        (result,) = llm.generate([5, 6, 7], GREEDY, use_tqdm=False)
        with pytest.raises(InvalidRequest, match=r"no tokenizer\.json"):
            llm.generate("text", GREEDY)
    assert result.outputs[0].token_ids == expected_greedy([5, 6, 7], 24)
    assert result.outputs[0].text == ""
    assert "has no tokenizer.json" in caplog.text


# -- no folder ---------------------------------------------------------------------------------------------------------


def test_without_a_model_it_is_the_embedded_one() -> None:
    assert model_folder(None) == model_folder(DEMO) == demo.FOLDER and model_folder(RANDOM) is None
    assert model_folder(str(demo.FOLDER)) == model_folder(demo.FOLDER) == demo.FOLDER
    for model in (None, DEMO):
        prepared = prepare(model, {})
        assert prepared.model == DEMO and prepared.chat_template is not None
        assert RunnerConfig.decode(prepared.spec.payload).model == str(demo.FOLDER)
        assert prepared.defaults.sampling == {"temperature": 0.0} and len(prepared.defaults.eos_token_ids) == 1


@pytest.mark.parametrize("model", [None, DEMO, RANDOM])
def test_what_comes_with_chairlift_has_no_revision(model: str | None) -> None:
    with pytest.raises(ConfigError, match="is part of Chairlift and has no revision 'v1'"):
        prepare(model, {"revision": "v1"})


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_without_a_model_name_the_log_names_the_model(caplog: pytest.LogCaptureFixture, kind: Any) -> None:
    kind(num_blocks=80).close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [no_model_given()]
    caplog.clear()
    kind(DEMO, num_blocks=80).close()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_the_tiny_random_model_has_text_and_chat() -> None:
    with LLM(RANDOM, num_blocks=64) as llm:
        (result,) = llm.generate("hello", SamplingParams(max_tokens=4, seed=1), use_tqdm=False)
        (chat,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)
    assert result.prompt_token_ids == [256, *b"hello"]
    assert chat.prompt == "user: hi\nassistant: "


def test_a_seeded_llm_draws_the_same_seeds_again() -> None:
    def generate(seed: int | None) -> list[list[int]]:
        with LLM(RANDOM, num_blocks=64, seed=seed) as llm:
            results = llm.generate(["a", "a"], SamplingParams(max_tokens=6), use_tqdm=False)
            return [result.outputs[0].token_ids for result in results]

    first = generate(5)
    assert first == generate(5)
    assert first != generate(6)
    assert first[0] != first[1]


# -- what cannot be ----------------------------------------------------------------------------------------------------


@for_each(
    ("options", "expected_message"),
    [
        ({"max_batch_token": 5}, "unknown option 'max_batch_token'; did you mean 'max_batch_tokens'?"),
        ({"zzz": 5}, "unknown option 'zzz'; available are dtype"),
        ({"engine_mode": "thread"}, "unknown engine_mode 'thread'; available are inline, process"),
        ({"scheduling_policy": "best"}, "unknown scheduling_policy 'best'"),
        ({"batching_policy": "best"}, "unknown batching_policy 'best'"),
        ({"safety_margin": 0.5}, "safety_margin needs batching_policy 'fifo'"),
        ({"batching_policy": "fifo", "safety_margin": 1.5}, "safety_margin must be at least 0"),
        ({"max_batch_tokens": 0}, "max_batch_tokens must be at least 1, got 0"),
        ({"max_queue_size": 0}, "max_queue_size must be at least 1, got 0"),
        ({"seed": "x"}, "seed: expected `int | null`, got `str`"),
        ({"num_blocks": "5"}, "num_blocks: expected `int | null`, got `str`"),
        ({"block_size": 1.5}, "block_size: expected `int`, got `float`"),
        ({"max_running_requests": True}, "max_running_requests: expected `int`, got `bool`"),
        ({"overlap": "yes"}, "overlap: expected `bool | null`, got `str`"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching: expected `bool`, got `int`"),
        ({"dtype": None}, "dtype: expected `str`, got `null`"),
        ({"engine_mode": None}, "unknown engine_mode None"),
        ({"engine_mode": [1]}, "unknown engine_mode [1]"),
    ],
)  # fmt: skip
def test_an_impossible_option_is_refused_before_the_model_is_looked_for(options: Any, expected_message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM("/no/such/folder", **options)
    assert expected_message in caught.value.message


@for_each(
    "options",
    [
        {"dtype": "int3"}, {"device": "toaster"}, {"block_size": 0}, {"num_blocks": 0}, {"max_memory": -1.0},
        {"attention_backend": "magic"}, {"max_model_len": 1},
    ],
)  # fmt: skip
def test_an_impossible_option_of_the_runner_is_refused_at_start(options: Any) -> None:
    with pytest.raises(ConfigError):
        LLM(RANDOM, **options)


def test_a_model_that_is_not_there_or_not_ours_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder '/no/such/folder'"):
        LLM("/no/such/folder")
    with pytest.raises(ModelError, match=r"no config\.json in"):
        LLM(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"}')
    with pytest.raises(UnsupportedArchitecture, match="Mamba2ForCausalLM"):
        LLM(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ChairliftError, match=r"config\.json"):
        LLM(tmp_path)


def test_every_option_belongs_to_a_part() -> None:
    parts = {spec.name for kind in (SchedulerConfig, RunnerConfig, LivenessConfig) for spec in fields(kind)}
    assert set(Options.__annotations__) - parts == {
        "enable_prefix_caching", "engine_mode", "revision", "hf_file", "tokenizer", "profile", "chat_template",
        "default_chat_template_kwargs", "reasoning_parser", "speculative_config",
    }  # fmt: skip


def test_the_tokenizer_of_another_model_may_be_named(tmp_path: Path) -> None:
    own = HFTokenizer.load(demo.FOLDER)
    write_gguf(tmp_path / "a.gguf", "llama", lambda _: "Q8_0", vocab_size=own.vocab_size)
    with pytest.raises(ModelError, match=r"a\.gguf: .*tokenizer"):
        prepare(tmp_path / "a.gguf", {})
    prepared = prepare(tmp_path / "a.gguf", {"tokenizer": str(demo.FOLDER)})
    assert prepared.tokenizer is not None and prepared.tokenizer.encode("Hello") == own.encode("Hello")
    assert prepared.chat_template is not None and prepared.chat_template.text
    with pytest.raises(ConfigError, match=rf"ids up to 49151, the model's embedding has {own.vocab_size} rows"):
        prepare(tmp_path / "a.gguf", {"tokenizer": str(smollm2_file())})
    with pytest.raises(ConfigError, match=r"chairlift:demo is part of Chairlift and has no hf_file 'a\.gguf'"):
        prepare(None, {"hf_file": "a.gguf"})


@pytest.mark.parametrize(("options", "expected_message"), [
    ({"max_batch_tokens": 0}, "max_batch_tokens must be at least 1"),
    ({"scheduling_policy": "best"}, "unknown scheduling_policy"),
    ({"scheduling_polcy": "fifo"}, "did you mean 'scheduling_policy'"),
    ({"engine_mode": "thread"}, "unknown engine_mode"),
    ({"safety_margin": 0.5}, "needs batching_policy"), ({"overlap": 3}, "overlap"),
    ({"heartbeat_timeout": 0}, "heartbeat_timeout must be"), ({"step_timeout": -1.0}, "step_timeout must be"),
])  # fmt: skip
def test_options_that_no_model_could_be_run_with_need_no_model_to_be_refused(
    options: Any, expected_message: str
) -> None:
    with pytest.raises(ConfigError, match=expected_message):
        validate_options(options)
    assert validate_options({"max_batch_tokens": 7}).max_batch_tokens == 7


@pytest.mark.parametrize(("alias", "name"), [("half", "float16"), ("bf16", "bfloat16"), ("auto", "auto")])
def test_an_alias_of_a_dtype_reaches_the_runner_by_its_own_name(alias: str, name: str) -> None:
    prepared = prepare(RANDOM, {"dtype": alias}, starts=False)
    assert RunnerConfig.decode(prepared.spec.payload).dtype == name


def test_a_start_is_rejected_before_the_engine_process_gets_its_model() -> None:
    for options in ({"dtype": "fp16x"}, {"max_model_len": 10**6}, {"num_blocks": 3, "max_model_len": 64}):
        with pytest.raises(ConfigError):
            prepare(None, options)  # type: ignore[arg-type]


def use_draft_model(monkeypatch: pytest.MonkeyPatch, model: Path | str) -> None:
    """Let every model that is built have a draft model."""
    config = SchedulerConfig(speculation=SpeculationConfig(
        method="draft_model", model=str(model), num_speculative_tokens=4
    ))  # fmt: skip

    def validate(options: Options) -> SchedulerConfig:
        return replace(validate_options(options), speculation=config.speculation)

    monkeypatch.setattr("chairlift.llm.build.validate_options", validate)


@for_each("engine_mode", ["inline", "process"])
def test_a_draft_model_changes_no_text(folder: Path, llm: LLM, engine_mode: str) -> None:
    expected = llm.generate(PROMPTS, GREEDY)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_draft_model(monkeypatch, folder)
        options: Any = {"engine_mode": engine_mode, "block_size": 16}
        drafting = LLM(str(folder), **options)
    with drafting:
        assert [each.outputs[0].text for each in drafting.generate(PROMPTS, GREEDY)] == [
            each.outputs[0].text for each in expected
        ]
        assert drafting.startup_report["draft model: model"] == f"{folder} (LlamaForCausalLM)"


def test_a_draft_model_with_other_tokens_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    other = save_tiny("llama", tmp_path / "llama3", **VOCAB)
    support_text.save_tokenizer(other, *build_tokenizer("llama3"), template=TEMPLATE)
    silent = save_tiny("llama", tmp_path / "silent")
    for model, message in (
        (other, r"the draft model .*llama3 has other tokens than the model: id \d+ is .* there and .* here; choose"),
        (silent, "the draft model .*silent has no tokenizer.json, so that their tokens cannot be compared"),
        ("", "method 'draft_model' of speculation needs a model"),
    ):
        use_draft_model(monkeypatch, model)
        with pytest.raises(ConfigError, match=message):
            prepare(str(folder), {})


def test_a_draft_model_without_a_tokenizer_serves_a_model_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    model, draft = save_tiny("llama", tmp_path / "model"), save_tiny("qwen3", tmp_path / "draft")
    use_draft_model(monkeypatch, draft)
    spec = prepare(str(model), {}).draft_spec
    assert spec is not None and RunnerConfig.decode(spec.payload).model == str(draft)
    use_draft_model(monkeypatch, save_tiny("llama", tmp_path / "larger", vocab_size=310))
    with pytest.raises(ConfigError, match="cannot be compared"):
        prepare(str(model), {})


@for_each(
    ("max_memory", "num_blocks", "own", "draft"),
    [(None, None, None, 0.05), (0.5, None, 0.4, 0.1), (1 << 30, None, None, (1 << 30) // 5), (None, 100, None, 0.05)],
)
def test_the_memory_for_caches_is_shared_with_a_draft_model(
    folder: Path, max_memory: Any, num_blocks: Any, own: Any, draft: float
) -> None:
    options: Any = {"max_memory": max_memory, "num_blocks": num_blocks, "max_running_requests": 400}
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_draft_model(monkeypatch, folder)
        prepared = prepare(str(folder), options)
    assert prepared.draft_spec is not None
    of_model = RunnerConfig.decode(prepared.spec.payload)
    of_draft = RunnerConfig.decode(prepared.draft_spec.payload)
    assert of_draft.max_memory == pytest.approx(draft) and of_draft.num_blocks == of_model.num_blocks == num_blocks
    if isinstance(max_memory, int):
        own = max_memory - (1 << 30) // 5
    assert of_model.max_memory == (own if own is None else pytest.approx(own))
    assert (of_draft.max_running_requests, of_model.max_running_requests) == (256, 400)
