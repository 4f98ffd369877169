"""Peers that are not there: an interpreter with packages that look like engines, and a server like llama.cpp's."""

import sys
from pathlib import Path

FAKE_VLLM = '''
from types import SimpleNamespace as N

__version__ = "9.9"
SEEN = []


class SamplingParams:
    def __init__(self, **given):
        assert given.pop("temperature") == 0 and given.pop("ignore_eos") and not given.pop("detokenize")
        self.max_tokens = given.pop("max_tokens")
        assert not given


class Engine:
    """Answers with two tokens a step at most."""

    def __init__(self, given):
        self.open, self.engine_core = {}, N()
        self.vllm_config = N(
            model_config=N(dtype=given["dtype"], quantization=given.get("quantization")),
            scheduler_config=N(max_num_seqs=given["max_num_seqs"], max_num_batched_tokens=given["max_model_len"]),
        )

    def add_request(self, name, prompt, params):
        assert prompt["prompt_token_ids"]
        self.open[name] = [0, params.max_tokens]

    def has_unfinished_requests(self):
        return bool(self.open)

    def step(self):
        outputs = []
        for name, held in list(self.open.items()):
            held[0] = min(held[0] + 2, held[1])
            outputs.append(N(request_id=name, outputs=[N(token_ids=list(range(held[0])))]))
            if held[0] == held[1]:
                del self.open[name]
        return outputs


class LLM:
    def __init__(self, model, **given):
        import os
        assert os.environ["VLLM_CPU_KVCACHE_SPACE"] and os.environ["VLLM_CPU_OMP_THREADS_BIND"]
        self.llm_engine = Engine(given)

    def reset_prefix_cache(self):
        pass
'''
FAKE_OPENVINO = """
from types import SimpleNamespace as N

__version__ = "8.8"


class SchedulerConfig(N):
    pass


class GenerationConfig(N):
    pass


class Handle:
    def __init__(self, config):
        assert config.ignore_eos and not config.do_sample and config.min_new_tokens == config.max_new_tokens
        self.left, self.ready = config.max_new_tokens, 0

    def can_read(self):
        return self.ready > 0

    def read(self):
        count, self.ready = self.ready, 0
        return {0: N(generated_ids=list(range(count)))}


class ContinuousBatchingPipeline:
    def __init__(self, folder, scheduler, device, properties):
        assert device == "CPU" and properties["INFERENCE_NUM_THREADS"] >= 1
        self.handles, self.seen = [], set()

    def add_request(self, number, prompt, config):
        assert number not in self.seen and prompt.value.shape[0] == 1
        self.seen.add(number)
        self.handles.append(Handle(config))
        return self.handles[-1]

    def has_non_finished_requests(self):
        return any(handle.left for handle in self.handles)

    def step(self):
        for handle in self.handles:
            taken = min(1, handle.left)
            handle.left, handle.ready = handle.left - taken, handle.ready + taken
"""
FAKE_OPENVINO_CORE = """
from types import SimpleNamespace


def Tensor(value):
    return SimpleNamespace(value=value)
"""
FAKE_SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if "--version" in sys.argv:
    print("version: 42 (abc)", file=sys.stderr)
    sys.exit(0)
if {broken!r}:
    print("error: no such model", file=sys.stderr)
    sys.exit(1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *given):
        pass

    def say(self, body, kind):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.say(b"{{}}", "application/json")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert asked["prompt"] and asked["ignore_eos"] and asked["return_tokens"]
        events = [{{"content": "", "tokens": [7], "stop": False}} for _ in range(asked["n_predict"])]
        events.append({{"content": "", "tokens": [], "stop": True}})
        self.say("".join(f"data: {{json.dumps(event)}}\\n\\n" for event in events).encode(), "text/event-stream")


words = dict(zip(sys.argv[1:], sys.argv[2:]))
assert words["-m"] and int(words["-c"]) >= int(words["-np"])
ThreadingHTTPServer((words["--host"], int(words["--port"])), Handler).serve_forever()
"""


def interpreter(folder: Path) -> str:
    """Write a program that runs scripts as a Python does that has the packages above."""
    packages = {"vllm": FAKE_VLLM, "openvino_genai": FAKE_OPENVINO, "openvino": FAKE_OPENVINO_CORE}
    for name, text in packages.items():
        (folder / f"{name}.py").write_text(text)
    start = f"import runpy, sys; sys.path.insert(0, {str(folder)!r}); sys.argv = sys.argv[2:]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return _program(folder / "python", f'#!/bin/sh\nexec "{sys.executable}" -c "{start}" "$@"\n')


def llama_server(folder: Path, *, broken: bool = False) -> str:
    """Write a program that answers as llama-server does, or that leaves at once."""
    return _program(folder / "llama-server", FAKE_SERVER.format(python=sys.executable, broken=broken))


def _program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
