"""Run llama.cpp's converter on a model whose tokenizer it has never seen; by the Python of its environment.

    python to_gguf.py SOURCE_OF_LLAMA_CPP MODEL ARGUMENTS..

The converter knows tokenizers by a hash; ours, made on the spot, is called by the name of one that splits as it does.
"""

import importlib
import os
import runpy
import sys
from pathlib import Path

SPLITS_LIKE = "qwen2"


def main() -> None:
    """Convert."""
    source, *words = sys.argv[1:]
    words = [str(Path(word).resolve()) if "/" in word else word for word in words]
    sys.path[:0] = [source, str(Path(source, "gguf-py"))]
    os.chdir(source)
    base = importlib.import_module("conversion.base")
    for each in vars(base).values():
        if isinstance(each, type) and "get_vocab_base_pre" in vars(each):
            each.get_vocab_base_pre = lambda self, tokenizer: SPLITS_LIKE  # type: ignore[attr-defined]
    sys.argv = ["convert_hf_to_gguf.py", *words]
    runpy.run_path(str(Path(source, "convert_hf_to_gguf.py")), run_name="__main__")


if __name__ == "__main__":
    main()
