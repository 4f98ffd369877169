"""Make the demo model: train it (a run that was cut goes on), examine it, write its card.

python -m demo_model build/demo-model --into src/chairlift/demo
"""

import argparse
import shutil
from pathlib import Path

from demo_model import card, evaluate, train

KEPT = (
    "README.md", "chat_template.jinja", "config.json", "examination.json", "generation_config.json", "loss.png",
    "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.json", "training.jsonl",
)  # fmt: skip
"""What the package carries."""


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(prog="python -m demo_model", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the training runs; a run that was cut short goes on there")
    parser.add_argument("--into", type=Path, help="copy what the package carries there")
    train.add_options(parser)
    arguments = parser.parse_args()
    train.run(arguments)
    evaluate.run(arguments.folder)
    card.draw_loss(arguments.folder)
    card.write(arguments.folder)
    if arguments.into is not None:
        for name in KEPT:
            shutil.copyfile(arguments.folder / name, arguments.into / name)


if __name__ == "__main__":
    main()
