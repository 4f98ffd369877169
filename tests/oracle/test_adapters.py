"""Logits with LoRA adapters against PEFT, for every architecture and kind of adapter, several in one step."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift import LLM, LoRARequest, SamplingParams
from chairlift.core.errors import ConfigError
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.layers.adapted_decoder import AdaptedDecoder
from chairlift.model.layers.ops import TorchOps
from chairlift.model.loading.model_building import load_model
from chairlift.model.lora.base_weights import base_weights
from chairlift.model.lora.peft_adapter import AdapterTargets, read_adapter
from chairlift.model.weights.checkpoint import Checkpoint
from support_adapters import ADAPTER_KINDS, adapted_model, add_adapter
from support_architectures import StoredTensor
from support_batches import teacher_forced_logits
from support_logits import furthest, hf_logits
from support_models import HYBRIDS, VARIANTS, VOCAB_SIZE, save_tiny, tiny_hf_model
from support_shares import each_value

CPU = torch.device("cpu")
LENGTHS = (90, 41, 1, 23, 60)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: save_tiny(kind, tmp_path_factory.mktemp(kind), seed=5) for kind in VARIANTS}


def load(folder: Path, *, adapts: bool = True) -> tuple[Any, Any]:
    return load_model(
        folder, dtype="float64", device=CPU, max_model_len=None,
        choose_backend=lambda _: TorchBackend(TorchOps(), adapts=adapts),
    )  # fmt: skip


def modules_of(model: AdaptedDecoder, config: Any) -> set[str]:
    """Return transformers' names of the modules that adapters may change."""
    base = base_weights(None, config, model.adaptable, torch.float64)
    return set(AdapterTargets(config, model.adaptable, base).modules.values())


@pytest.mark.share(2)
@pytest.mark.parametrize(("fields", "kind"), each_value(ADAPTER_KINDS, VARIANTS))
def test_float64_logits_equal_those_of_peft(folders: dict[str, Path], kind: str, fields: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    batch = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    model, config = load(folders[kind])
    theirs = []
    for number, each in ((1, fields), (2, "all")):
        adapted = adapted_model(kind, 5, ADAPTER_KINDS[each], number, modules_of(model, config))
        adapted.save_pretrained(tmp_path / str(number))
        add_adapter(model, config, folders[kind], number, tmp_path / str(number))
        theirs.append(adapted)
    numbers = (1, 2, 1, 0, 1)
    found = teacher_forced_logits(model, batch, torch.float64, max_chunk=30, adapters=numbers)
    plain, _ = load(folders[kind], adapts=False)
    without = teacher_forced_logits(plain, batch, torch.float64, max_chunk=30)
    for number, tokens, logits, base in zip(numbers, batch, found, without, strict=True):
        if number == 0:
            assert furthest(logits, base) < 1e-9
            continue
        assert furthest(logits, hf_logits(theirs[number - 1], tokens)) < (2e-4 if kind in HYBRIDS else 1e-5)
        assert furthest(logits, base) > 1e-3


@pytest.mark.share(2)
@pytest.mark.parametrize(("fields", "kind"), each_value(["all", "patterns", "dora", "regex, rslora"], VARIANTS))
def test_the_weights_with_an_adapter_are_those_that_peft_merges(
    folders: dict[str, Path], kind: str, fields: str, tmp_path: Path
) -> None:
    model, config = load(folders[kind])
    adapted = adapted_model(kind, 5, ADAPTER_KINDS[fields], 3, modules_of(model, config))
    adapted.save_pretrained(tmp_path)
    base = base_weights(folders[kind], config, model.adaptable, torch.float64)
    projections = read_adapter(tmp_path, AdapterTargets(config, model.adaptable, base)).weights.projections
    with torch.inference_mode():
        merged = adapted.merge_and_unload().state_dict()
    checkpoint = Checkpoint({name: StoredTensor(name, tensor) for name, tensor in merged.items()})
    checkpoint.arrange(config, [f"{name}.weight" for name in projections])
    assert projections
    for name, part in projections.items():
        total = base(name) + part.scale * part.b @ part.a
        expected = checkpoint.read(f"{name}.weight")
        torch.testing.assert_close(total if part.gain is None else part.gain[:, None] * total, expected)


def test_llm_generates_what_peft_does_with_each_prompt_s_own_adapter(folders: dict[str, Path], tmp_path: Path) -> None:
    model, config = load(folders["qwen3"])
    theirs, requests = [tiny_hf_model("qwen3", 5)], list[LoRARequest | None]([None])
    for number, fields in ((1, "all"), (2, "saved"), (3, "dora")):
        adapted = adapted_model("qwen3", 5, ADAPTER_KINDS[fields], number, modules_of(model, config))
        adapted.save_pretrained(tmp_path / fields)
        theirs.append(adapted)
        requests.append(LoRARequest(fields, number, str(tmp_path / fields)))
    rng, count = random.Random(4), 12
    prompts = [[rng.randrange(8, VOCAB_SIZE) for _ in range(rng.randrange(1, 40))] for _ in range(12)]
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    with LLM(str(folders["qwen3"]), dtype="float64", num_blocks=400, enable_lora=True) as llm:
        results = llm.generate(prompts, params, lora_request=requests * 3, use_tqdm=False)
    with (
        LLM(str(folders["qwen3"]), dtype="float64", num_blocks=20) as llm,
        pytest.raises(ConfigError, match="make one with enable_lora=True"),
    ):
        llm.generate(prompts[:1], params, lora_request=requests[1], use_tqdm=False)
    for place, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        tokens = list(result.outputs[0].token_ids)
        predicted = hf_logits(theirs[place % 4], [*prompt, *tokens])[len(prompt) - 1 : -1].argmax(-1).tolist()
        assert len(tokens) == count and tokens == predicted
