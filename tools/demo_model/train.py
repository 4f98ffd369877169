"""Training: makes a model folder from a seed; an interrupted run continues from its last checkpoint."""

import argparse
import hashlib
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from chairlift.bench.report import environment
from demo_model import tokenizer_training
from demo_model.conversations import SKILLS, examination
from demo_model.network_and_optimizers import Optimizers, loss_of, make_network
from demo_model.tokenizing_and_packing import Rows, Writer, packed, step_rows

TOKENS = 4096
"""Tokens of a training step, including padding."""

SHORT, LONG, LONG_EVERY = 256, 2048, 10
"""Tokens of a short and of a long row; every LONG_EVERY-th step has long rows."""

MATRIX_RATE, OTHER_RATE = 0.003, 0.003
"""Learning rates. At three times these rates the model does not learn to copy."""

WARM_UP, COOL_DOWN = 100, 0.4
"""Number of steps in which the rates rise, and the share of all steps at the end in which they fall."""

LOOK_EVERY, SAVE_EVERY = 200, 400
HELD_OUT = 16
"""Number of held-out tasks per skill for the held-out loss."""

DRILL = 0.1
"""Share of the steps, at the start, with more copying tasks; most skills need copying, and it is learnt slowly."""

MAX_NORM = 1.0


def rate_at(step: int, steps: int) -> float:
    """Return the factor of the learning rates at a step: it rises, stays at 1 and falls to 0."""
    cooling = max(1, int(COOL_DOWN * steps))
    return min(1.0, (step + 1) / WARM_UP, (steps - step) / cooling)


def drilling_at(step: int, steps: int) -> float:
    """Return the share of copying tasks among the conversations: 0.5 at first, 0 after the share DRILL of the steps."""
    return max(0.0, 0.5 * (1 - step / (DRILL * steps)))


def compiled(body: Any) -> Any:
    """Return the compiled module if there is a C++ compiler, else the module itself."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return body
    return torch.compile(body, dynamic=False)


def held_out_rows(writer: Writer) -> list[Rows]:
    """Return the rows of the held-out loss, one block for each skill."""
    return [
        packed(iter([writer.task(task) for task in examination(skill, HELD_OUT)]), HELD_OUT, 384) for skill in SKILLS
    ]


class Run:
    """One training run and its state."""

    def __init__(self, folder: Path, seed: int, steps: int) -> None:
        """Start in an empty folder, or continue from the checkpoint in the folder."""
        self.folder, self.seed, self.steps = folder, seed, steps
        self.step, self.seconds = 0, 0.0
        if not (folder / tokenizer_training.LAST_FILE).exists():
            tokenizer_training.save(tokenizer_training.train(seed), folder)
        self.writer = Writer(folder)
        self.origin = {
            "threads": torch.get_num_threads(), "hardware": environment.hardware(), "versions": environment.versions(),
            "data": self._digest(),
        }  # fmt: skip
        self.network = make_network(seed, self.writer.end, self.writer.padding)
        self.optimizers = Optimizers(self.network, MATRIX_RATE, OTHER_RATE)
        self._checkpoint = folder / "checkpoint.pt"
        if self._checkpoint.exists():
            self._restore(torch.load(self._checkpoint, weights_only=True))
        self._truncate_log()
        self._held_out = held_out_rows(self.writer)
        self._fast = compiled(self.network.model)

    def _digest(self) -> str:
        """Return a hash of the training data, computed from a few steps."""
        digest = hashlib.sha256()
        for step in sorted({0, min(LONG_EVERY, self.steps) - 1, self.steps - 1}):
            digest.update(self._rows(step).input_ids.tobytes())
        return digest.hexdigest()

    def _restore(self, saved: dict[str, Any]) -> None:
        for name, mine in (("seed", self.seed), ("steps", self.steps), ("data", self.origin["data"])):
            theirs = saved["origin"]["data"] if name == "data" else saved[name]
            if theirs != mine:
                raise SystemExit(f"{self._checkpoint} is of {name} {theirs}, not {mine}")
        self.origin = saved["origin"]
        self.network.load_state_dict(saved["network"])
        self.optimizers.load(saved["optimizers"])
        self.step, self.seconds = saved["step"], saved["seconds"]

    def _truncate_log(self) -> None:
        """Remove the log entries that are later than the checkpoint."""
        log = self.folder / "training.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
        log.write_text("".join(line for line in lines if json.loads(line)["step"] <= self.step), encoding="utf-8")

    def train(self) -> None:
        """Run the remaining steps."""
        began = time.monotonic() - self.seconds
        with tqdm(total=self.steps, initial=self.step, desc="demo model", unit="step") as bar:
            while self.step < self.steps:
                loss = self._take_step()
                self.step += 1
                self.seconds = time.monotonic() - began
                bar.set_postfix_str(f"loss {loss:.3f}")
                bar.update()
                if self.step % LOOK_EVERY == 0 or self.step == self.steps:
                    self._look(loss)
                if self.step % SAVE_EVERY == 0 or self.step == self.steps:
                    self.save()

    def _take_step(self) -> float:
        rows = self._rows(self.step)
        with torch.autocast("cpu", torch.bfloat16):
            loss, count = loss_of(self.network, rows, self._fast)
        torch.autograd.backward(loss / count)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)
        self.optimizers.step(rate_at(self.step, self.steps))
        return loss.item() / count

    def _rows(self, step: int) -> Rows:
        length = LONG if step % LONG_EVERY == LONG_EVERY - 1 else SHORT
        return step_rows(self.writer, self.seed, step, TOKENS, length, drilling_at(step, self.steps))

    def _look(self, loss: float) -> None:
        """Write down where the run is."""
        with torch.no_grad():
            found = [loss_of(self.network, rows) for rows in self._held_out]
        by_skill = {skill: round(total.item() / count, 4) for skill, (total, count) in zip(SKILLS, found, strict=True)}
        entry = {
            "step": self.step, "tokens": self.step * TOKENS, "seconds": round(self.seconds, 1), "loss": round(loss, 4),
            "held_out_loss": round(math.fsum(by_skill.values()) / len(by_skill), 4), "by_skill": by_skill,
        }  # fmt: skip
        with (self.folder / "training.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")

    def save(self) -> None:
        """Keep everything that a later run needs; what was kept before stays until that is whole."""
        state = {
            "seed": self.seed, "steps": self.steps, "step": self.step, "seconds": self.seconds,
            "network": self.network.state_dict(), "optimizers": self.optimizers.state(), "origin": self.origin,
        }  # fmt: skip
        part = self._checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(self._checkpoint)

    def export(self) -> None:
        """Write model.safetensors (bfloat16), config.json, generation_config.json (greedy) and training.json."""
        self.network.generation_config.do_sample = False
        self.network.bfloat16().save_pretrained(self.folder)
        about = {
            "seed": self.seed, "steps": self.steps, "step_tokens": TOKENS, "seconds": round(self.seconds),
            "parameters": self.network.num_parameters(), **self.origin,
        }  # fmt: skip
        (self.folder / "training.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a run is made of."""
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)


def run(arguments: argparse.Namespace) -> None:
    """Train and export; what lies in the folder already is taken up."""
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)  # else the compiled backward of the embedding adds in any order
    mine = Run(arguments.folder, arguments.seed, arguments.steps)
    mine.train()
    mine.export()


def main() -> None:
    """Train alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    add_options(parser)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
