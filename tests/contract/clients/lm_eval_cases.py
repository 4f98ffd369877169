"""lm-eval over HTTP, with tasks of our own: loglikelihoods of prompts that are echoed, and generated answers."""

import os
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import lm_eval
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).with_name("lm_eval_tasks")
MODEL = "chairlift:demo"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskManager:
    """Copy the tasks to a folder in which their relative file names are right."""
    for source in TASKS.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.chdir(tmp_path)
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


def evaluate(tasks: TaskManager, model: str, task: str, **options: Any) -> dict[str, Any]:
    """Run a task; returns its results and its samples."""
    evaluation = lm_eval.simple_evaluate(
        model=model, model_args={"model": MODEL, "num_concurrent": 4, "max_retries": 1, "max_length": 2048, **options},
        tasks=[task], task_manager=tasks, log_samples=True, bootstrap_iters=0,
        apply_chat_template="chat" in model, random_seed=0,
    )  # fmt: skip
    assert evaluation is not None
    return {"results": evaluation["results"][task], "samples": evaluation["samples"][task]}


def demo_tokenizer() -> str:
    return os.environ["CHAIRLIFT_SUITE_TOKENIZER"]


def test_loglikelihoods(tasks: TaskManager, url: str) -> None:
    """Prompts as texts and as token ids, alone and several in a request, have the same scores."""
    found: list[list[float]] = []
    for tokenized_requests, batch_size in ((True, 1), (True, 4), (False, 1), (False, 4)):
        evaluation = evaluate(
            tasks, "local-completions", "capitals_choice", base_url=f"{url}/completions", tokenizer=demo_tokenizer(),
            tokenizer_backend="huggingface", tokenized_requests=tokenized_requests, batch_size=batch_size,
        )  # fmt: skip
        found.append([response[0][0] for sample in evaluation["samples"] for response in sample["resps"]])
        assert evaluation["results"]["acc,none"] > 0.5, evaluation["results"]
    assert len(found[0]) == 18 and max(found[0]) < 0
    assert all(scores == pytest.approx(found[0], abs=1e-3) for scores in found)


def test_the_servers_own_tokenizer(tasks: TaskManager, url: str) -> None:
    """Without a tokenizer option lm-eval asks the server for token ids, and finds the same scores."""
    asked = {"base_url": f"{url}/completions", "num_concurrent": 1}
    remote = evaluate(tasks, "local-completions", "capitals_choice", **asked)
    local = evaluate(
        tasks,
        "local-completions",
        "capitals_choice",
        tokenizer=demo_tokenizer(),
        tokenizer_backend="huggingface",
        **asked,
    )
    found = [[each[0][0] for sample in run["samples"] for each in sample["resps"]] for run in (remote, local)]
    assert found[0] == pytest.approx(found[1], abs=1e-3)


def test_perplexity_of_texts(tasks: TaskManager, url: str) -> None:
    results = evaluate(
        tasks, "local-completions", "capitals_perplexity", base_url=f"{url}/completions", tokenizer=demo_tokenizer(),
        tokenizer_backend="huggingface",
    )["results"]  # fmt: skip
    assert 1 < results["byte_perplexity,none"] < 10


@pytest.mark.parametrize("model", ["local-completions", "local-chat-completions"])
def test_generated_answers(tasks: TaskManager, url: str, model: str) -> None:
    path = "chat/completions" if "chat" in model else "completions"
    backend = {} if "chat" in model else {"tokenizer": demo_tokenizer(), "tokenizer_backend": "huggingface"}
    results = evaluate(tasks, model, "capitals_answer", base_url=f"{url}/{path}", **backend)["results"]
    assert 0 <= results["exact_match,none"] <= 1
    if "chat" in model:
        assert results["exact_match,none"] > 0.5, results
