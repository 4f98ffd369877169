"""`chairlift doctor`: the machine, a model's memory use, and problems with remedies."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift import demo
from chairlift.cli import system_info
from chairlift.cli.commands import doctor
from chairlift.cli.main import main
from chairlift.core.errors import ModelError
from chairlift.core.host.gpu_reader import GpuReader, GpuUsage
from chairlift.llm import model_inspection
from chairlift.llm.build import build_service
from chairlift.llm.builtin_models import DEMO, RANDOM, no_model_given
from chairlift.model.kernels.cpu import library
from support_bridged_models import save_bridged
from support_checkpoints import PUBLISHED
from support_fleet_server import open_fleet_server
from support_models import save_tiny

KEYS = {
    "chairlift", "python", "platform", "cpu", "memory", "gpus", "gpu_driver", "environment", "compiler", "libraries",
    "devices", "cuda",
    "threads", "memory_limits", "attention_backends", "kernels", "model", "problems", "ok",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("model"))


def run_doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", *words, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, json.loads(out)


def errors(report: dict[str, Any]) -> list[str]:
    assert all(set(problem) == {"level", "what", "do"} and problem["do"] for problem in report["problems"])
    return [problem["what"] for problem in report["problems"] if problem["level"] == "error"]


@pytest.mark.full
def test_without_a_model_the_embedded_one_is_examined_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert set(report) == KEYS and report["ok"] and report["model"]["name"] == DEMO
    assert report["model"]["parameters"] == demo.parameters() and report["model"]["has_tokenizer"]
    assert err == no_model_given() + "\n"
    assert main(["doctor", "--quiet"]) == 0 and capsys.readouterr().err == ""
    code, named = run_doctor(capsys, DEMO)
    assert code == 0 and named["model"]["num_blocks"] == report["model"]["num_blocks"]


@pytest.mark.full
def test_a_damaged_embedded_model_is_a_problem_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for content in (b"", b"\xff" * 40, (2).to_bytes(8, "little") + b"[]", None):
        if content is not None:
            (tmp_path / "model.safetensors").write_bytes(content)
        else:
            (tmp_path / "model.safetensors").unlink()
        monkeypatch.setattr(demo, "FOLDER", tmp_path)
        code, report = run_doctor(capsys)
        assert code == 1 and errors(report)
        with pytest.raises(ModelError, match="the embedded demo model is damaged"):
            no_model_given()


def test_an_empty_name_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run_doctor(capsys, "")
    assert code == 1 and errors(report) == ["the name of the model is empty; name a folder or a hub id"]


def test_a_revision_without_a_hub_id_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run_doctor(capsys, "--revision", "v1")
    assert code == 1 and [problem["do"] for problem in report["problems"] if problem["level"] == "error"] == [
        doctor.REMEDIES["revision"]
    ]


def test_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run_doctor(capsys, RANDOM)
    assert code == 0 and set(report) == KEYS and report["ok"] and report["model"]["architecture"] is None
    assert report["devices"][0]["name"] == "cpu" and "float32" in report["devices"][0]["dtypes"]
    assert report["threads"] >= 1 and "reference" in report["attention_backends"]
    assert {"torch", "numpy"} <= {library["name"] for library in report["libraries"]}


def test_a_model_that_fits(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, report = run_doctor(capsys, str(folder), "--max-running-requests", "3", "--dtype", "float32")
    model = report["model"]
    assert code == 0 and set(model) == set(doctor.MODEL_FACTS) and errors(report) == []
    assert model["stored_types"] == "F32 100%"
    assert (model["architecture"], model["dtype"], model["device"]) == ("LlamaForCausalLM", "float32", "cpu")
    service = build_service(str(folder), {"max_running_requests": 3, "dtype": "float32"})
    try:
        info = service.client.info
    finally:
        service.client.close()
    assert model["num_blocks"] == info.num_blocks and model["max_model_len"] == info.max_model_len
    assert model["tokens"] == info.num_blocks * info.block_size
    assert model["requests_by_length"][str(info.max_model_len)] == 3
    assert model["weight_bytes"] == 4 * model["parameters"]
    assert model["kv_bytes"] == model["kv_bytes_per_token"] * model["tokens"]


def test_a_model_with_states_has_the_numbers_of_its_runner(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = save_tiny("lfm2", tmp_path)
    _, report = run_doctor(capsys, str(folder), "--max-running-requests", "3", "--dtype", "float32")
    service = build_service(str(folder), {"max_running_requests": 3, "dtype": "float32"})
    try:
        info = service.client.info
    finally:
        service.client.close()
    model = report["model"]
    assert (model["num_blocks"], model["state_bytes"]) == (info.num_blocks, info.state_bytes)
    assert model["state_checkpoints"] == info.num_state_checkpoints > 0
    assert main(["doctor", str(folder)]) == 0
    assert re.search(r"state of a request +1\.5 KiB; \d+ states of prefixes", capsys.readouterr().out)


def test_the_implementation_of_a_model_of_transformers_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    save_bridged("starcoder2", tmp_path)
    assert main(["doctor", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"implementation +transformers: its modules on the paged KV cache", text)
    assert re.search(r"layers +3 with a window of 20; on the paged attention", text)


def test_a_model_of_transformers_without_transformers_has_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_bridged("starcoder2", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, report = run_doctor(capsys, str(tmp_path))
    assert code == 1 and errors(report)[0].endswith("Starcoder2ForCausalLM, which Chairlift does not have itself")
    assert report["problems"][0]["do"].endswith("pip install 'chairlift[transformers]'")


def test_the_report_for_people_is_aligned_and_names_everything(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "CHAIRLIFT_MAX_WAITING_REQUESTS"
    monkeypatch.setenv(name, "7")
    assert main(["doctor", str(folder)]) == 0
    text = capsys.readouterr().out
    sections = {title: rows for title, *rows in (section.splitlines() for section in text.split("\n\n")[1:])}
    assert f"  {name} 7" in sections["machine"]
    for title in ("machine", "libraries", "model"):
        longest = {"machine": name, "libraries": max(system_info.PURPOSES, key=len), "model": ""}[title]
        column = 3 + max(22, len(longest))
        assert all(row[column - 1] == " " != row[column] for row in sections[title] if len(row) > column)
    for word in ("LlamaForCausalLM", "KV cache per token", "requests at once", "torch", "CPU"):
        assert word in text


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("words", "message", "do"),
    [
        (["/no/such/folder"], "no model folder '/no/such/folder'", "check the name"),
        (["{folder}", "--max-model-len", "99999999"], "the model's limit is", "lower max_model_len"),
        (["{folder}", "--num-blocks", "999999999"], "num_blocks 999999999 needs", "lower num_blocks"),
        (["{folder}", "--max-memory", "1000"], "one sequence needs at least", "use a smaller model"),
        (["{folder}", "--device", "cuda:77"], "device 'cuda:77' cannot be used", "leave device out"),
        (["{folder}", "--dtype", "int3"], "dtype 'int3' is unknown", "leave dtype out"),
        (["{folder}", "--block-size", "0"], "", "change that setting"),
        (["{folder}", "--scheduling-policy", "best"], "unknown scheduling_policy 'best'", "change that setting"),
    ],
)
def test_an_impossible_option_is_a_problem_with_a_remedy(
    capsys: pytest.CaptureFixture[str], folder: Path, words: list[str], message: str, do: str
) -> None:
    code, report = run_doctor(capsys, *(word.format(folder=folder) for word in words))
    assert code == 1 and not report["ok"]
    assert any(message in what for what in errors(report)), report["problems"]
    assert any(do in problem["do"] for problem in report["problems"])


def copy_with(folder: Path, target: Path, name: str, text: str | None) -> Path:
    copy = Path(shutil.copytree(folder, target))
    if text is None:
        (copy / name).unlink()
    else:
        (copy / name).write_text(text)
    return copy


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", "config.json"),
        ("config.json", '{"architectures": ["Mamba2ForCausalLM"]}', "Mamba2ForCausalLM has no attention heads"),
        ("config.json", None, "no config.json"),
        ("model.safetensors", None, "neither model.safetensors nor"),
        ("model.safetensors", "short", "truncated"),
    ],
)
def test_an_invalid_folder_is_a_problem_with_its_reason(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    code, report = run_doctor(capsys, str(copy_with(folder, tmp_path / "copy", name, text)))
    assert code == 1 and any(message in what for what in errors(report)), report["problems"]
    if name != "config.json":
        assert report["model"]["parameters"] > 0, "the report has everything that could be determined"


UNSUPPORTED: dict[str, dict[str, object]] = {
    "gguf": {"model.gguf": ""},
    "lora": {"adapter_config.json": {"base_model_name_or_path": "a/b"}},
    "quip": {"config.json": {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "quip"}}},
    "vision": {"config.json": {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}}},
    "encoder": {"config.json": {"architectures": ["BertForMaskedLM"]}},
    "unknown": {"config.json": {"architectures": ["Mamba2ForCausalLM"]}},
    "pickle": {"config.json": PUBLISHED["Qwen2.5-0.5B"], "pytorch_model.bin": ""},
}  # fmt: skip


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_an_unsupported_model_gets_the_same_sentence_from_every_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    for name, content in UNSUPPORTED[kind].items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    code, report = run_doctor(capsys, str(tmp_path))
    (problem,) = (each for each in report["problems"] if each["level"] == "error")
    assert code == 1 and "files again" not in problem["do"]
    for command in ("serve", "generate"):
        assert main([command, str(tmp_path)]) == 2
        sentence = capsys.readouterr().err.splitlines()[-1].removeprefix("chairlift: ")
        assert sentence in (problem["what"], f"{problem['what']}; {problem['do']}")


def test_an_exception_becomes_a_problem(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> Any:
        raise OSError("this torch was made for another machine\nand so on")

    monkeypatch.setattr(model_inspection, "inspect_machine", fail)
    monkeypatch.setattr(model_inspection, "inspect_model", fail)
    monkeypatch.setattr(system_info, "memory", fail)
    code, report = run_doctor(capsys, str(folder))
    assert code == 1 and set(report) == KEYS and report["devices"] is None and report["memory"] is None
    assert any("torch cannot be used: OSError: this torch was" in what for what in errors(report))
    assert main(["doctor", str(folder)]) == 1
    assert "Traceback" not in capsys.readouterr().out


def test_gpus_are_shown_with_memory_and_use(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = GpuUsage(
        gpu="0", name="H100", utilization_ratio=0.35, memory_used_bytes=2**30, memory_total_bytes=80 * 2**30
    )
    monkeypatch.setattr(GpuReader, "read", lambda _: (busy, GpuUsage(gpu="1", error="GPU is lost")))
    code, report = run_doctor(capsys, str(folder))
    assert code == 0 and [each["gpu"] for each in report["gpus"]] == ["0", "1"]
    assert report["gpus"][0]["utilization_ratio"] == 0.35
    assert main(["doctor", str(folder)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "GPU 0 H100, 1.0 GiB of 80.0 GiB used, busy 35% of the time" in lines
    assert "GPU 1 unknown, GPU is lost" in lines


@pytest.mark.share(2)
@pytest.mark.parametrize(("cuda", "driver", "line"), [
    ({"version": "13.0", "missing": None}, "580.95.05", "CUDA 13.0, driver 580.95.05"),
    ({"version": None, "missing": "torch is built without CUDA"}, None,
     "CUDA no device (torch is built without CUDA), no NVIDIA driver"),
    ({"version": "13.0", "missing": "torch finds no CUDA device"}, "580.95.05",
     "CUDA 13.0, no device (torch finds no CUDA device), driver 580.95.05"),
])  # fmt: skip
def test_cuda_and_its_driver_are_shown_or_what_is_missing(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch, cuda: dict[str, Any],
    driver: str | None, line: str,
) -> None:  # fmt: skip
    machine = model_inspection.inspect_machine()
    machine["devices"].append({
        "name": "cuda:0", "description": "H100", "memory_total": 80 * 2**30, "memory_free": 2**30, "dtypes": [],
        "native_bfloat16": True, "compute_capability": "9.0",
    })  # fmt: skip
    monkeypatch.setattr(model_inspection, "inspect_machine", lambda: machine | {"cuda": cuda})
    monkeypatch.setattr(system_info, "gpu_driver", lambda: driver)
    assert main(["doctor", str(folder)]) == 0
    lines = [" ".join(each.split()) for each in capsys.readouterr().out.splitlines()]
    assert line in lines and "device cuda:0 H100, compute capability 9.0, 1.0 GiB free; native bfloat16" in lines


def test_a_slow_machine_is_a_warning_and_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        system_info, "cpu", lambda: {"model": "x", "cores": 1, "logical": 64, "usable": 64, "quota": 0.5}
    )
    monkeypatch.setattr(
        system_info, "memory",
        lambda: {"total": 2**30, "available": 2**20, "transparent_huge_pages": "never", "huge_pages": 0},
    )  # fmt: skip
    monkeypatch.setattr(model_inspection, "inspect_machine", lambda: {"threads": 2, "devices": []})
    code, report = run_doctor(capsys)
    assert code == 0 and report["ok"]
    assert [problem["level"] for problem in report["problems"]] == ["warning"] * 3
    assert "set OMP_NUM_THREADS=1" in [problem["do"] for problem in report["problems"]]


def test_a_library_that_is_missing_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = ["numpy>=99", "no-such-thing>=2", 'nice-to-have; extra == "nice"']
    libraries = list(system_info.libraries(requirements))
    monkeypatch.setattr(system_info, "libraries", lambda: libraries)
    code, report = run_doctor(capsys)
    assert code == 1 and len(errors(report)) == 2
    assert "no-such-thing is missing, Chairlift needs no-such-thing>=2" in errors(report)


def test_a_folder_without_a_tokenizer_is_a_warning(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    _, report = run_doctor(capsys, str(folder))
    assert report["model"]["has_tokenizer"] is False
    assert any("no tokenizer.json" in problem["what"] for problem in report["problems"])


def test_a_name_with_control_characters_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "a\x1b[2J\nb"]) == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.full
def test_missing_kernels_are_a_warning_with_their_cost_and_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "LIBRARY", "not-compiled.so")
    library.load.cache_clear()
    try:
        code, report = run_doctor(capsys, DEMO)
        assert main(["doctor", "--quiet"]) == 0
    finally:
        library.load.cache_clear()
    assert code == 0 and report["kernels"]["sets"] == []
    problem = next(each for each in report["problems"] if "half of their speed" in each["what"])
    assert problem["level"] == "warning" and "not compiled" in problem["what"] and "install g++" in problem["do"]
    assert re.search(r"^  native kernels +none$", capsys.readouterr().out, re.MULTILINE)


def test_a_live_server_is_checked_instead_of_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", None)
    with open_fleet_server() as server:
        command = ["doctor", "--url", server.url, "--interval", "0.1"]
        server.routes = {"/livez": {}, "/readyz": {"state": "ready"}, "/load": {}, "/version": {"version": "1.2"},
                         "/metrics": "chairlift_kv_cache_usage_ratio 1\nchairlift_sequences_waiting 2\n"}  # fmt: skip
        assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"replica {server.url}, Chairlift 1.2"
        start = lines.index(f"  warning: {server.url}: 100% of the KV cache is held by requests, and 2 sequences wait")
        assert lines[start + 1].startswith("      -> add replicas")
        assert lines[start + 2].strip() == "docs/troubleshooting.md#the-kv-cache-is-full"
        server.routes.pop("/readyz")
        assert main([*command, "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
        assert not report["ok"] and {"cache_full", "not_ready"} <= {each["check"] for each in report["problems"]}
    assert main(command) == 1 and "does not answer" in capsys.readouterr().out


def test_a_model_and_a_live_server_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "MODEL", "--url", "http://127.0.0.1:1"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_the_forms_of_messages_that_the_chat_template_does_not_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", DEMO]) == 0
    out = capsys.readouterr().out
    assert "\nchat template: how messages are written\n" in out
    for part in ("first instructions", "later instructions", "tools", "calls and results", "repeated roles"):
        assert re.search(rf"^  {part} +\S", out, re.MULTILINE), part
