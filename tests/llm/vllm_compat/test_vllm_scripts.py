"""Scripts that use vLLM's Python API run with the import changed: generation, chat, structured output, streaming."""

import subprocess
import sys
from typing import Any

import pytest

SIZES = 'max_model_len=256, max_num_seqs=4, num_gpu_blocks_override=64, dtype="float32"'

GENERATE = f"""
from vllm import LLM, SamplingParams

prompts = ["The lift goes", "A ticket costs", "In winter"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)

def main():
    llm = LLM(model="chairlift:demo", tokenizer="chairlift:demo", trust_remote_code=False, tensor_parallel_size=1,
              gpu_memory_utilization=0.5, enforce_eager=True, swap_space=4, seed=0, {SIZES})
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        print(f"Prompt: {{output.prompt!r}}, generated text: {{output.outputs[0].text!r}}")
    assert [output.prompt for output in outputs] == prompts
    assert all(len(output.outputs[0].token_ids) == 16 for output in outputs)
    [again] = llm.generate({{"prompt_token_ids": outputs[0].prompt_token_ids}},
                           sampling_params=SamplingParams(n=2, logprobs=1, prompt_logprobs=1, max_tokens=4, seed=1))
    assert again.prompt is None and again.finished and len(again.outputs) == 2
    for completion in again.outputs:
        assert len(completion.logprobs) == 4
        for token_id, logprobs in zip(completion.token_ids, completion.logprobs):
            assert logprobs[token_id].logprob <= 0 and isinstance(logprobs[token_id].decoded_token, str)
            assert 1 in [entry.rank for entry in logprobs.values()]
        total = sum(each[token].logprob for token, each in zip(completion.token_ids, completion.logprobs))
        assert abs(completion.cumulative_logprob - total) < 1e-9
    assert again.prompt_logprobs[0] is None
    assert all(token in entry for token, entry in zip(again.prompt_token_ids[1:], again.prompt_logprobs[1:]))

if __name__ == "__main__":
    main()
"""

CHAT = f"""
from vllm import EngineArgs, LLM, SamplingParams

engine_args = EngineArgs(model="chairlift:demo", seed=0, {SIZES})
llm = LLM(**vars(engine_args))
sampling_params = llm.get_default_sampling_params()
conversation = [
    {{"role": "system", "content": "Answer briefly."}},
    {{"role": "user", "content": "What is a paged KV cache?"}},
]
[alone] = llm.chat(conversation, sampling_params=sampling_params, use_tqdm=False)
assert alone.outputs[0].text and alone.outputs[0].finish_reason in ("stop", "length")
outputs = llm.chat([conversation] * 3, SamplingParams(temperature=0.0, max_tokens=8), use_tqdm=True)
assert len({{output.outputs[0].text for output in outputs}}) == 1 and len(outputs) == 3
assert outputs[-1].num_cached_tokens >= 0

tokenizer = llm.get_tokenizer()
prompt = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
ids = tokenizer.encode(prompt, add_special_tokens=False)
params = SamplingParams(temperature=0.0, max_tokens=8, stop_token_ids=[tokenizer.eos_token_id])
[by_text] = llm.generate([{{"prompt_token_ids": ids}}], params, use_tqdm=False)
assert by_text.outputs[0].text == outputs[0].outputs[0].text
assert tokenizer.decode(by_text.outputs[0].token_ids, skip_special_tokens=True) == by_text.outputs[0].text
"""

STREAM = f"""
import asyncio
from vllm import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams

async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="chairlift:demo", enforce_eager=True, {SIZES}))
    sampling_params = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.95, seed=42,
                                     output_kind=RequestOutputKind.DELTA)
    pieces, token_ids = [], []
    stream = engine.generate(request_id="request-1", prompt="The lift goes", sampling_params=sampling_params)
    async for output in stream:
        for completion in output.outputs:
            pieces.append(completion.text)
            token_ids += completion.token_ids
        if output.finished:
            break
    whole = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.95, seed=42)
    last = None
    async for last in engine.generate("The lift goes", whole, "request-2"):
        pass
    assert last.request_id == "request-2" and last.outputs[0].text == "".join(pieces) != ""
    assert last.outputs[0].token_ids == token_ids and last.finished
    engine.shutdown()

asyncio.run(main())
"""

STRUCTURED = f"""
import json
from vllm import LLM, SamplingParams, StructuredOutputsParams

llm = LLM(model="chairlift:demo", seed=0, {SIZES})

def answer(**structured):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**structured), max_tokens=60)
    return llm.generate("The lift is", sampling_params=params, use_tqdm=False)[0].outputs[0].text

assert answer(choice=["open", "closed"]) in ("open", "closed")
assert answer(regex="[a-z]{{3}}[0-9]") [3].isdigit()
schema = {{"type": "object", "properties": {{"open": {{"type": "boolean"}}}}, "required": ["open"],
          "additionalProperties": False}}
assert type(json.loads(answer(json=schema))["open"]) is bool
assert answer(grammar='root ::= "up" | "down"') in ("up", "down")
"""


def with_import_changed(script: str) -> str:
    """Return a script for vLLM with its import changed and nothing else."""
    assert script.count("from vllm import") == 1 and "chairlift import" not in script
    return script.replace("from vllm import", "from chairlift import")


@pytest.mark.full
def test_text_generation_runs_as_a_script_of_its_own() -> None:
    """It ends by itself, though nothing closes the LLM."""
    command = [sys.executable, "-c", with_import_changed(GENERATE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Prompt: ") == 3


@pytest.mark.share(1)
@pytest.mark.parametrize("script", [CHAT, STREAM], ids=["chat", "stream"])
def test_chat_and_streaming_run(script: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(with_import_changed(script), "script", "exec"), names)
    if "llm" in names:
        names["llm"].close()


@pytest.mark.full
def test_structured_output_runs() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(with_import_changed(STRUCTURED), "script", "exec"), names)
    names["llm"].close()
