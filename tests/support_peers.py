"""Fake peer engines: a Python interpreter with fake packages, and a llama.cpp server."""

import sys
from pathlib import Path

FAKE_VLLM = '''
from types import SimpleNamespace as N

__version__ = "9.9"
SEEN = []


class SamplingParams:
    def __init__(self, **fields):
        assert fields.pop("temperature") == 0 and fields.pop("ignore_eos") and not fields.pop("detokenize")
        self.max_tokens = fields.pop("max_tokens")
        assert not fields


class Engine:
    """Generates at most two tokens per step."""

    def __init__(self, options):
        self.open, self.engine_core = {}, N()
        self.vllm_config = N(
            model_config=N(dtype=options["dtype"], quantization=options.get("quantization")),
            scheduler_config=N(max_num_seqs=options["max_num_seqs"], max_num_batched_tokens=options["max_model_len"]),
        )

    def add_request(self, name, prompt, params):
        assert prompt["prompt_token_ids"]
        self.open[name] = [0, params.max_tokens]

    def has_unfinished_requests(self):
        return bool(self.open)

    def step(self):
        outputs = []
        for name, progress in list(self.open.items()):
            progress[0] = min(progress[0] + 2, progress[1])
            outputs.append(N(request_id=name, outputs=[N(token_ids=list(range(progress[0])))]))
            if progress[0] == progress[1]:
                del self.open[name]
        return outputs


class LLM:
    def __init__(self, model, **options):
        import os
        assert os.environ["VLLM_CPU_KVCACHE_SPACE"] and os.environ["VLLM_CPU_OMP_THREADS_BIND"]
        self.llm_engine = Engine(options)

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
        self.handles, self.request_ids = [], set()

    def add_request(self, number, prompt, config):
        assert number not in self.request_ids and prompt.value.shape[0] == 1
        self.request_ids.add(number)
        self.handles.append(Handle(config))
        return self.handles[-1]

    def has_non_finished_requests(self):
        return any(handle.left for handle in self.handles)

    def step(self):
        for handle in self.handles:
            count = min(1, handle.left)
            handle.left, handle.ready = handle.left - count, handle.ready + count
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

    def log_message(self, *args):
        pass

    def respond(self, body, kind):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.respond(b"{{}}", "application/json")

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert request["prompt"] and request["ignore_eos"] and request["return_tokens"]
        events = [{{"content": "", "tokens": [7], "stop": False}} for _ in range(request["n_predict"])]
        events.append({{"content": "", "tokens": [], "stop": True}})
        self.respond("".join(f"data: {{json.dumps(event)}}\\n\\n" for event in events).encode(), "text/event-stream")


options = dict(zip(sys.argv[1:], sys.argv[2:]))
assert options["-m"] and int(options["-c"]) >= int(options["-np"])
ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""


def write_python(folder: Path) -> str:
    """Write a program that runs scripts like a Python interpreter with the packages above."""
    packages = {"vllm": FAKE_VLLM, "openvino_genai": FAKE_OPENVINO, "openvino": FAKE_OPENVINO_CORE}
    for name, text in packages.items():
        (folder / f"{name}.py").write_text(text)
    start = f"import runpy, sys; sys.path.insert(0, {str(folder)!r}); sys.argv = sys.argv[2:]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return _program(folder / "python", f'#!/bin/sh\nexec "{sys.executable}" -c "{start}" "$@"\n')


def write_llama_server(folder: Path, *, broken: bool = False) -> str:
    """Write a program that responds like llama-server, or that exits at once if it is `broken`."""
    return _program(folder / "llama-server", FAKE_SERVER.format(python=sys.executable, broken=broken))


def _program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
