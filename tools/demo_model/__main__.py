"""Train the demo model, evaluate it and write its model card; an interrupted training continues.

python -m demo_model build/demo-model --into src/chairlift/demo
"""

import argparse
import shutil
from pathlib import Path

from demo_model import evaluate, model_card_and_loss_plot, train

PACKAGED_FILES = (
    "README.md", "chat_template.jinja", "config.json", "examination.json", "generation_config.json", "loss.png",
    "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.json", "training.jsonl",
)  # fmt: skip
"""The files that the package includes."""


def main() -> None:
    """Train, evaluate, write the model card, and copy the packaged files."""
    parser = argparse.ArgumentParser(prog="python -m demo_model", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the training run; an interrupted run continues")
    parser.add_argument("--into", type=Path, help="folder to copy the packaged files to")
    train.add_options(parser)
    arguments = parser.parse_args()
    train.run(arguments)
    evaluate.run(arguments.folder)
    model_card_and_loss_plot.draw_loss(arguments.folder)
    model_card_and_loss_plot.write(arguments.folder)
    if arguments.into is not None:
        for name in PACKAGED_FILES:
            shutil.copyfile(arguments.folder / name, arguments.into / name)


if __name__ == "__main__":
    main()
