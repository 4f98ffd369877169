"""Convert a model with an unknown tokenizer to GGUF by llama.cpp's converter, in the Python environment of llama.cpp.

    python convert_to_gguf.py LLAMA_CPP_SOURCE MODEL ARGUMENTS...

The converter recognizes tokenizers by a hash and rejects unknown ones. This script makes it treat the model's tokenizer
as one that splits text in the same way. Models are converted without heads that predict several tokens.
"""

import importlib
import os
import runpy
import sys
from pathlib import Path

PRE_TOKENIZER = "qwen2"
"""llama.cpp's name of the pre-tokenizer that splits text as the model's own does."""


def main() -> None:
    """Run the converter with the command line's arguments."""
    source, *args = sys.argv[1:]
    args = [str(Path(arg).resolve()) if "/" in arg else arg for arg in args]
    sys.path[:0] = [source, str(Path(source, "gguf-py"))]
    os.chdir(source)
    base = importlib.import_module("conversion.base")
    for each in vars(base).values():
        if isinstance(each, type) and "get_vocab_base_pre" in vars(each):
            each.get_vocab_base_pre = lambda self, tokenizer: PRE_TOKENIZER  # type: ignore[attr-defined]
        if isinstance(each, type) and "no_mtp" in vars(each):
            each.no_mtp = True  # type: ignore[attr-defined]
    sys.argv = ["convert_hf_to_gguf.py", *args]
    runpy.run_path(str(Path(source, "convert_hf_to_gguf.py")), run_name="__main__")


if __name__ == "__main__":
    main()
