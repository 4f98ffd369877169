"""A user's script for transformers' continuous batching: two batches, compared with generate().

simple.py MODEL_FOLDER RESULT_FILE
"""

import json
import random
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

folder, result_file = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
model = model.eval()

rng = random.Random(0)
prompts = [[rng.randrange(3, 120) for _ in range(rng.randrange(2, 40))] for _ in range(12)]
prompts += [prompts[0] + [5, 6], prompts[0] + [7]]
eos_token_id = model.generation_config.eos_token_id

generation_config = GenerationConfig(
    max_new_tokens=16, do_sample=False, eos_token_id=eos_token_id, pad_token_id=0, use_cuda_graph=False, num_blocks=64,
    max_batch_tokens=256,
)  # fmt: skip
small = ContinuousBatchingConfig(num_blocks=32, max_batch_tokens=256)
model.generate_batch(inputs=prompts[:3], generation_config=generation_config, continuous_batching_config=small)
outputs = model.generate_batch(inputs=prompts, generation_config=generation_config, continuous_batching_config=small)

config = ContinuousBatchingConfig(
    page_size=32, num_blocks=64, max_batch_tokens=64, scheduler_type="prefill_first", use_cuda_graph=False,
    return_logprobs=True,
)  # fmt: skip
chunked = model.generate_batch(
    inputs=prompts, generation_config=generation_config, continuous_batching_config=config, record_timestamps=True
)

expected = []
for prompt in prompts:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, eos_token_id=eos_token_id,
            pad_token_id=0,
        )  # fmt: skip
    expected.append(whole[0, len(prompt) :].tolist())

by_prompt = {tuple(output.prompt_ids): output for output in chunked.values()}
for output in chunked.values():
    assert output.is_finished() and len(output.timestamps) == len(output.logprobs) == len(output.generated_tokens)
Path(result_file).write_text(json.dumps({
    "ids": list(outputs), "batch": [outputs[request].generated_tokens for request in outputs], "expected": expected,
    "prompts": [outputs[request].prompt_ids for request in outputs],
    "status": [int(each.status) for each in outputs.values()],
    "chunked": [by_prompt[tuple(prompt)].generated_tokens for prompt in prompts],
    "logprobs": [[round(value, 3) for value in by_prompt[tuple(prompt)].logprobs] for prompt in prompts],
}))  # fmt: skip
