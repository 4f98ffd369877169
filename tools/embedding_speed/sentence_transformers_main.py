"""Embeddings by sentence-transformers, in a Python of its own: `python sentence_transformers_main.py FOLDER DTYPE`.

A line of the input is a JSON list of texts as token ids. The line of the output is a JSON object with their embeddings
and the seconds. Texts are sorted by length and computed in batches of 32, as by encode(), without the time of its
tokenizer.
"""

import importlib
import json
import sys
import time
from typing import Any

BATCH = 32
"""Texts of a batch, by encode()'s default."""


def main(folder: str, dtype: str) -> None:
    """Answer lines until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    torch: Any = importlib.import_module("torch")
    package: Any = importlib.import_module("sentence_transformers")
    modules: Any = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    transformer = modules.Transformer(folder, model_kwargs={"torch_dtype": getattr(torch, dtype)})
    pooling = modules.Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    model = package.SentenceTransformer(modules=[transformer, pooling, modules.Normalize()], device="cpu")
    for line in sys.stdin:
        texts, began = json.loads(line), time.perf_counter()
        embeddings = embed(model, torch, texts)
        seconds = time.perf_counter() - began
        answers.write(json.dumps({"embeddings": embeddings, "seconds": seconds}) + "\n")
        answers.flush()


def embed(model: Any, torch: Any, texts: list[list[int]]) -> list[list[float]]:
    """Return the embedding of each text."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    found: dict[int, list[float]] = {}
    for begin in range(0, len(order), BATCH):
        batch = order[begin : begin + BATCH]
        width = len(texts[batch[0]])
        ids, mask = torch.zeros(len(batch), width, dtype=torch.int64), torch.zeros(len(batch), width, dtype=torch.int64)
        for row, index in enumerate(batch):
            ids[row, : len(texts[index])] = torch.tensor(texts[index])
            mask[row, : len(texts[index])] = 1
        with torch.inference_mode():
            states = model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]
        found.update(zip(batch, states.float().tolist(), strict=True))
    return [found[index] for index in range(len(texts))]


if __name__ == "__main__":
    main(*sys.argv[1:])
