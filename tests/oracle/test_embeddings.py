"""Embeddings equal the hidden states of transformers: whole, in chunks, after a prefix hit, beside generation."""

import numpy as np
import pytest
import torch
import transformers

from chairlift import LLM, SamplingParams
from chairlift.model.layers.decoder import TorchDecoder
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest
from support_oracle import Oracle, oracle, own_prompt, shared_prompt
from support_shares import each_value

ARCHITECTURES = ("llama", "mistral", "qwen3", "gemma3", "gpt2", "gemma2")
PROMPTS = [list(own_prompt(number, length)) for number, length in enumerate((1, 2, 33, 64))]
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def model_of(architecture: str) -> Oracle:
    return oracle(architecture, 20 if architecture in {"mistral", "gemma3", "gemma2"} else None)


def expected(model: torch.nn.Module, prompt: list[int], pooling: str) -> np.ndarray:
    with torch.inference_mode():
        states = model.base_model(torch.tensor([prompt])).last_hidden_state[0]
    pooled = states.mean(0) if pooling == "mean" else states[-1]
    return pooled.double().numpy()


def assert_close(embedding: list[float], right: np.ndarray) -> None:
    assert np.abs(np.array(embedding) - right).max() <= 1e-5 * max(1.0, float(np.abs(right).max()))


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("pooling", "chunk", "architecture"), each_value(["mean", "last"], [None, 1, 7], ARCHITECTURES)
)
def test_embeddings_are_the_pooled_states_of_transformers(architecture: str, chunk: int | None, pooling: str) -> None:
    reference = model_of(architecture)
    single = transformers.AutoModelForCausalLM.from_pretrained(reference.folder, dtype="float32").eval()
    with LLM(str(reference.folder), dtype="float32", num_blocks=300, max_chunk_tokens=chunk) as llm:
        outputs = llm.embed(PROMPTS, pooling=pooling, normalize=False, use_tqdm=False)
        again = llm.embed(PROMPTS, pooling=pooling, normalize=False, use_tqdm=False)
    for prompt, output, cached in zip(PROMPTS, outputs, again, strict=True):
        assert_close(output.embedding, expected(single, prompt, pooling))
        assert_close(cached.embedding, expected(single, prompt, pooling))
        assert output.usage.prompt_tokens == len(prompt) and output.usage.completion_tokens == 0
    assert (again[-1].usage.cached_tokens > 0) == (pooling == "last")


def test_generation_in_the_same_steps_keeps_its_tokens() -> None:
    reference = model_of("qwen3")
    prompts = [list(shared_prompt(number, 20, 12)) for number in range(4)]
    with LLM(str(reference.folder), dtype="float64", num_blocks=300, max_batch_tokens=24) as llm:
        alone = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
        llm.flush_cache()
        service = llm._service
        processors = [service.prepare_completion(prompt, GREEDY) for prompt in prompts]
        processors += [service.prepare_embedding(prompt, pooling="mean") for prompt in PROMPTS]
        results = llm._run(processors[::2] + processors[1::2], use_tqdm=False)
    tokens = {result.request_id: result.outputs[0].token_ids for result in results}
    assert [tokens[processor.request.request_id] for processor in processors[:4]] == alone
    for prompt, processor in zip(PROMPTS, processors[4:], strict=True):
        states = np.frombuffer(processor.result().embedding, np.float32)
        assert_close(states.tolist(), expected(reference.model, prompt, "mean"))


def test_a_step_of_embeddings_alone_computes_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    head = TorchDecoder.head

    def counted(self: TorchDecoder, hidden: torch.Tensor, request: LogitsRequest) -> LMHeadOutput:
        rows.append(len(hidden))
        return head(self, hidden, request)

    monkeypatch.setattr(TorchDecoder, "head", counted)
    with LLM(str(model_of("llama").folder), dtype="float64", num_blocks=100) as llm:
        rows.clear()
        assert all(output.embedding for output in llm.embed(PROMPTS, use_tqdm=False))
        assert not rows
        llm.generate([PROMPTS[0]], GREEDY, use_tqdm=False)
        assert rows


def test_native_kernels_make_the_same_embeddings() -> None:
    reference = model_of("llama")
    for pooling in ("mean", "last"):
        vectors = {}
        for dtype in ("float32", "bfloat16"):
            with LLM(str(reference.folder), dtype=dtype, num_blocks=100, max_chunk_tokens=16) as llm:
                vectors[dtype] = [output.embedding for output in llm.embed(PROMPTS, pooling=pooling, use_tqdm=False)]
        for single, half in zip(vectors["float32"], vectors["bfloat16"], strict=True):
            assert np.linalg.norm(single) == pytest.approx(1, abs=1e-5)
            assert float(np.dot(single, half)) > 0.995
