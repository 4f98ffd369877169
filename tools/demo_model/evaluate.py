"""Evaluation: the share of held-out tasks of each skill that the model answers correctly with greedy decoding."""

import argparse
import json
from pathlib import Path
from typing import Any

from chairlift import LLM, SamplingParams
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.tokenizer import HFTokenizer
from demo_model.conversations import SKILLS, examination
from demo_model.task import Task

COUNT = 200
"""Tasks of each skill."""

MAX_TOKENS = 160


def prompts(folder: Path, tasks: list[Task]) -> list[list[int]]:
    """Return the tasks' prompts as token ids."""
    tokenizer = HFTokenizer.load(folder)
    template = ChatTemplate.load(folder, tokenizer)
    rendered = [template.render(task.messages, tools=task.tools or None) for task in tasks]
    return [list(tokenizer.encode_chat(each)) for each in rendered]


def answers(llm: LLM, folder: Path, tasks: list[Task]) -> list[str]:
    """Return the model's answers to the tasks, decoded greedily."""
    greedy = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    return [result.outputs[0].text for result in llm.generate(prompts(folder, tasks), greedy, use_tqdm=False)]


def examine(folder: Path, count: int = COUNT, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the number of correct answers and the first wrong ones for each skill."""
    report: dict[str, dict[str, Any]] = {}
    with LLM(str(folder), **options) as llm:
        for skill in SKILLS:
            tasks = examination(skill, count)
            said = answers(llm, folder, tasks)
            wrong = [
                {"asked": str(task.messages[-1]["content"]), "said": text, "right": task.answer}
                for task, text in zip(tasks, said, strict=True)
                if not task.is_right(text)
            ]
            report[skill] = {"tasks": count, "right": count - len(wrong), "wrong": wrong[:5]}
    return report


def run(folder: Path, count: int = COUNT) -> None:
    """Evaluate a model folder and write examination.json into it."""
    report = examine(folder, count, dtype="float32")
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    (folder / "examination.json").write_text(text, encoding="utf-8")
    for skill, found in report.items():
        print(f"{skill:14} {found['right'] / found['tasks']:6.1%}")  # noqa: T201


def main() -> None:
    """Evaluate the model of the folder on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    run(arguments.folder, arguments.count)


if __name__ == "__main__":
    main()
