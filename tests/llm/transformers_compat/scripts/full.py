"""A user's script for transformers' continuous batching: a manager with streams, handlers, a cancellation and metrics.

full.py MODEL_FOLDER RESULT_FILE
"""

import asyncio
import json
import logging
import random
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

logging.getLogger("ContinuousBatchingLogger").setLevel(logging.INFO)

folder, result_file = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
model = model.eval()

rng = random.Random(1)
prompts = [[rng.randrange(3, 120) for _ in range(rng.randrange(2, 40))] for _ in range(8)]
generation_config = GenerationConfig(
    max_new_tokens=12, do_sample=False, eos_token_id=model.generation_config.eos_token_id
)  # fmt: skip
batching_config = ContinuousBatchingConfig(page_size=32, num_blocks=64, max_batch_tokens=128, use_cuda_graph=False)
result = {}

manager = model.init_continuous_batching(
    generation_config=generation_config, continuous_batching_config=batching_config
)  # fmt: skip
queued = manager.add_request(prompts[0])  # before the start
manager.start()
assert manager.is_running()
while (output := manager.get_result(queued, timeout=1)) is None:
    pass
result["queued"] = [queued, output.generated_tokens]

# one stream
streamed = manager.add_request(prompts[1], request_id="stream", streaming=True)
stream = [(int(output.status), output.generated_tokens) for output in manager.request_id_iter("stream")]
assert [len(tokens) for _, tokens in stream] == list(range(1, len(stream) + 1))
result["stream"] = stream

# lengths and ends of their own, and metrics meanwhile
for index, prompt in enumerate(prompts):
    manager.add_request(prompt, f"own-{index}", max_new_tokens=3 + index, record_timestamps=True, eos_token_id=-1)
processor = manager.batch_processor
metrics = []
outputs = {}
while len(outputs) < len(prompts):
    scheduler = processor.scheduler
    metrics.append((len(scheduler.active_requests), len(scheduler.waiting_requests), processor.has_pending_requests()))
    if (output := manager.get_result(timeout=0.05)) is not None:
        outputs[output.request_id] = output
for output in outputs.values():
    assert output.error is None and output.timestamps == sorted(output.timestamps)
    assert output.created_time <= output.lifespan[0] <= output.lifespan[1] <= time.perf_counter()
result["own"] = [outputs[f"own-{index}"].generated_tokens for index in range(len(prompts))]
result["free blocks add up"] = processor.cache.num_blocks > 0
assert all(0 <= active + waiting <= len(prompts) for active, waiting, _ in metrics)

# add_requests
ids = manager.add_requests(prompts[:4], max_new_tokens=5)
several = {}
while len(several) < 4:
    if (output := manager.get_result(timeout=1)) is not None:
        several[output.request_id] = output.generated_tokens
result["several"] = [several[request_id] for request_id in ids]

# a cancellation; its neighbours go on
manager.add_request(prompts[2], "cancelled", max_new_tokens=150, eos_token_id=-1, streaming=True)
neighbour = manager.add_request(prompts[3], "neighbour", max_new_tokens=20, eos_token_id=-1)
manager.cancel_request("cancelled")
while True:
    output = manager.get_result(timeout=1)
    if output is not None and output.request_id == "neighbour":
        break
result["neighbour"] = output.generated_tokens
while processor.has_pending_requests():
    time.sleep(0.01)
while (output := manager.get_result(timeout=0.2)) is not None:
    assert output.request_id == "cancelled" and len(output.generated_tokens) < 150

# a pause
with manager.pause():
    weights = model.get_output_embeddings().weight
    with torch.no_grad():
        weights.copy_(weights.flip(0))
manager.add_request(prompts[0], "changed")
while (output := manager.get_result("changed", timeout=1)) is None:
    pass
result["changed"] = output.generated_tokens


# handlers
async def run_with_handler(name, prompt):
    outputs, done = [], asyncio.Event()

    def receive(output):
        outputs.append(output)
        if output.is_finished():
            done.set()

    manager.register_result_handler(name, receive)
    manager.add_request(prompt, name, streaming=True)
    await done.wait()
    return [len(output.generated_tokens) for output in outputs], outputs[-1].generated_tokens


async def main():
    return await asyncio.gather(*(run_with_handler(f"handled-{index}", prompts[index]) for index in range(4)))


result["handled"] = asyncio.run(main())
manager.stop(block=True, timeout=60)
assert not manager.is_running()

with model.continuous_batching_context_manager(
    generation_config=generation_config, continuous_batching_config=batching_config, block=True, timeout=60
) as manager:
    for index, prompt in enumerate(prompts):
        manager.add_request(prompt, str(index), max_new_tokens=4)
    outputs = {}
    for output in manager:
        outputs[output.request_id] = output.generated_tokens
        if len(outputs) == len(prompts):
            break
result["context"] = [outputs[str(index)] for index in range(len(prompts))]
Path(result_file).write_text(json.dumps(result))
