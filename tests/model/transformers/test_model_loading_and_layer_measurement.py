"""Models of transformers' modules: tokens of generate(), shared parameters, and refusals that say why."""

import contextlib
import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from chairlift import LLM, SamplingParams
from chairlift.core.errors import ConfigError, ModelError, UnsupportedArchitecture
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.transformers_config import TransformersConfig, parse_transformers_config
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.transformers import model_loading_and_layer_measurement as bridge
from chairlift.model.transformers.model_loading_and_layer_measurement import load_folder, load_module, measure_layers
from support_bridged_models import BRIDGED, WINDOW, bridged_model, greedy, save_bridged
from support_models import LONGROPE, save_tiny, tiny_hf_model
from support_native import need_native

CPU = torch.device("cpu")
PROMPTS = [[(7 * i + 3 * j) % 300 + 3 for i in range(length)] for j, length in enumerate((1, 5, 17, 33, 50))]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def shape_of(folder: Path) -> TransformersConfig:
    return parse_transformers_config(json.loads((folder / "config.json").read_text()))


def loaded(folder: Path, **options: Any) -> LoadedModel:
    return load_folder(folder, shape_of(folder), RunnerConfig(model=str(folder), **options), CPU)


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", ["gpt2", "starcoder2", "falcon"])  # the oracle has all
def test_tokens_equal_generate_in_chunks_and_batches(kind: str, tmp_path: Path) -> None:
    folder, model = save_bridged(kind, tmp_path), bridged_model(kind)
    with LLM(folder, dtype="float64", num_blocks=200, max_chunk_tokens=7) as llm:
        made = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        runs = llm.startup_report["implementation"]
    assert ("paged attention" in runs) == (BRIDGED[kind].runs == "paged")
    expected = [greedy(model, prompt, 16) for prompt in PROMPTS]
    assert [output.outputs[0].token_ids for output in made] == expected
    assert len({token for tokens in expected for token in tokens}) > 8, "the output repeats itself and hides errors"


@pytest.mark.full
def test_the_end_of_sequence_is_that_of_the_folder(tmp_path: Path) -> None:
    folder, model = save_bridged("olmo2", tmp_path), bridged_model("olmo2")
    prompt, params = PROMPTS[3], SamplingParams(temperature=0, max_tokens=24)
    made = greedy(model, prompt, 24)
    for place, field in (("generation_config.json", "eos_token_id"), ("config.json", "eos_token_id")):
        content = json.loads((folder / place).read_text())
        (folder / place).write_text(json.dumps(content | {field: [made[5], 2]}))
        with LLM(folder, dtype="float64", num_blocks=100) as llm:
            (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert output.outputs[0].token_ids == made[: made.index(made[5]) + 1]
        assert output.outputs[0].finish_reason == "stop"
        (folder / "generation_config.json").unlink(missing_ok=True)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "mistral"])
def test_native_architectures_make_the_same_tokens_through_transformers(kind: str, tmp_path: Path) -> None:
    folder, results = save_tiny(kind, tmp_path), []
    for model_impl in ("native", "transformers"):
        with LLM(folder, dtype="float64", num_blocks=200, max_chunk_tokens=7, model_impl=model_impl) as llm:
            results.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)])
            assert ("implementation" in llm.startup_report) == (model_impl == "transformers")
    assert results[0] == results[1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {"hidden_act": "relu"}),
        ("llama", {"rope_parameters": LONGROPE}),
        ("qwen3", {"hidden_act": "gelu_new"}),
    ],
)
def test_a_feature_that_native_lacks_runs_by_transformers(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    folder, model = save_tiny(kind, tmp_path, **fields), tiny_hf_model(kind, **fields)
    with LLM(folder, dtype="float64", num_blocks=200) as llm:
        made = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert llm.startup_report["implementation"] == "transformers on the paged attention"
    assert [output.outputs[0].token_ids for output in made] == [greedy(model, prompt, 16) for prompt in PROMPTS]


def test_windows_of_the_calls_decide_the_layer_groups(tmp_path: Path) -> None:
    made = loaded(save_bridged("gemma2", tmp_path), dtype="float32")
    assert made.config.layer_windows == (WINDOW, None, WINDOW)
    assert sorted(made.model.groups.windows, key=str) == [WINDOW, WINDOW, None]


def test_parameters_of_a_module_are_shared_and_the_module_stays_as_it_is() -> None:
    module = tiny_hf_model("gemma3", 0, torch.float64)
    ids = torch.tensor([[5, 6, 7]])
    before = module.generate(ids, max_new_tokens=6, do_sample=False).tolist()
    made = load_module(module, RunnerConfig(num_blocks=100))
    assert module.config._attn_implementation == "sdpa"
    assert module.generate(ids, max_new_tokens=6, do_sample=False).tolist() == before
    own: Any = made.model
    shared = {parameter.data_ptr() for parameter in module.parameters()}
    assert {parameter.data_ptr() for parameter in own.base.parameters()} <= shared
    hidden = torch.ones(1, 64, dtype=torch.float64)
    logits = own.logits(hidden)
    with torch.no_grad():
        module.get_output_embeddings().weight.mul_(2)
    assert torch.allclose(own.logits(hidden), 2 * logits)


@pytest.mark.full
def test_a_method_that_the_user_bound_to_a_module_runs_on_the_copy_which_does_not_keep_the_module() -> None:
    calls: list[nn.Module] = []

    def observed(mlp: Any, hidden: torch.Tensor) -> torch.Tensor:
        calls.append(mlp)
        result: torch.Tensor = type(mlp).forward(mlp, hidden)
        return result

    module = tiny_hf_model("llama", 0, torch.float32)
    mlp = module.model.layers[0].mlp
    mlp.forward, module.of_the_user = MethodType(observed, mlp), MethodType(observed, module)
    runner, original = TorchRunner(RunnerConfig(num_blocks=100), load_module(module, RunnerConfig())), weakref.ref(mlp)
    runner.start()
    runner.warmup()
    assert calls and mlp not in calls and type(calls[0]) is type(mlp)
    del module, mlp
    gc.collect()
    assert original() is None
    runner.stop()


def test_a_module_runs_in_a_runner() -> None:
    runner = TorchRunner(
        RunnerConfig(num_blocks=100), load_module(tiny_hf_model("llama", 0, torch.float32), RunnerConfig())
    )
    info = runner.start()
    assert info.vocab_size == 304 and info.windows == (None,) and info.model_id.startswith("LlamaForCausalLM-")
    runner.stop()


def test_a_module_is_not_blamed_for_a_triton_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> None:
        raise ConfigError(f"device {device!r}: no compiler", option="device")

    monkeypatch.setattr(bridge, "check_triton", refuse)
    with pytest.raises(ConfigError, match="device 'cpu': no compiler"):
        load_module(tiny_hf_model("llama", 0, torch.float32), RunnerConfig())


def test_the_device_of_the_model_is_the_current_one_while_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton runs its kernels on the current device."""
    current: list[torch.device] = []

    @contextlib.contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        current.append(tensor.device)
        yield
        current.pop()

    checked, check = [], bridge.check_against_eager
    monkeypatch.setattr(torch.cuda, "device_of", device_of)

    def checks(*arguments: Any, **options: Any) -> None:
        checked.append(list(current))
        check(*arguments, **options)

    monkeypatch.setattr(bridge, "check_against_eager", checks)
    load_module(tiny_hf_model("llama", 0, torch.float32), RunnerConfig())
    assert checked == [[CPU]] and not current


def without(folder: Path, tensor: str) -> Path:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors[tensor]
    save_file(tensors, file, {"format": "pt"})
    return folder


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = without(save_bridged("olmo2", tmp_path), "model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelError, match=r"1 tensors of Olmo2ForCausalLM are missing .*layers\.1\.mlp\.up_proj"):
        loaded(folder)


def test_a_config_that_transformers_rejects_is_a_model_error(tmp_path: Path) -> None:
    folder = save_bridged("olmo2", tmp_path)
    content = json.loads((folder / "config.json").read_text()) | {"model_type": "nothing"}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="transformers cannot load"):
        loaded(folder)


@pytest.mark.full
def test_the_dtype_of_the_largest_tensor_counts_where_config_has_none(tmp_path: Path) -> None:
    folder = save_bridged("olmo2", tmp_path)
    content = json.loads((folder / "config.json").read_text())
    del content["dtype"]
    (folder / "config.json").write_text(json.dumps(content))
    bridged_model("olmo2", 0, torch.bfloat16).save_pretrained(folder / "half")
    (folder / "half" / "config.json").write_text(json.dumps(content))
    assert loaded(folder, kernels="torch").config.dtype == "float32"
    assert loaded(folder / "half", kernels="torch").config.dtype == "bfloat16"


def save_config(folder: Path, config: Any) -> Path:
    config._experts_implementation = "eager"
    model: Any = transformers.AutoModelForCausalLM
    model.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.full
def test_layers_with_a_state_of_their_own_are_refused(tmp_path: Path) -> None:
    config = transformers.JambaConfig(
        vocab_size=304, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, use_mamba_kernels=False, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4,
    )  # fmt: skip
    with pytest.raises(UnsupportedArchitecture, match=r"JambaForCausalLM|keep keys and values"):
        loaded(save_config(tmp_path, config), dtype="float32")


class Biased(nn.Module):
    """An attention that adds a bias to the mask, which the attention interface does not carry to the paged cache."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask + 0.3 * torch.arange(attention_mask.shape[-1])
        return self.attention(attention_mask=attention_mask, **options)


def test_a_bias_that_the_paged_attention_would_lose_runs_one_sequence_after_another() -> None:
    module = bridged_model("olmo2")
    module.model.layers[1].self_attn = Biased(module.model.layers[1].self_attn)
    made = load_module(module, RunnerConfig(num_blocks=100))
    assert made.report[0] == ("implementation", "transformers with its own attention, one sequence after another")


class Mixing(nn.Module):
    """A norm that adds some of the token before."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(x)
        return normed + 0.1 * nn.functional.pad(normed, (0, 0, 1, 0))[:, :-1]


def test_a_model_that_mixes_neighbouring_tokens_is_refused() -> None:
    module = tiny_hf_model("llama", 0, torch.float32)
    module.model.layers[1].input_layernorm = Mixing(module.model.layers[1].input_layernorm)
    with pytest.raises(
        UnsupportedArchitecture, match=r"LlamaForCausalLM .* hidden states are not those of transformers"
    ):
        load_module(module, RunnerConfig())


def test_layers_without_causal_attention_are_refused() -> None:
    config = transformers.BertConfig(
        vocab_size=304, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4
    )
    module = transformers.BertLMHeadModel(config).bfloat16().eval()  # small differences would not show in bfloat16
    with pytest.raises(UnsupportedArchitecture, match="attend to later tokens"):
        load_module(module, RunnerConfig())


def test_native_kernels_that_are_required_and_do_not_fit_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bfloat16 and float32, not on cpu"):
        loaded(save_bridged("olmo2", tmp_path), dtype="float64", kernels="native")


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "quantization"),
    [("gpt2", "none"), ("gemma2", "int8"), ("mixtral", "none"), ("falcon", "none"), ("phi3", "int8-channel")],
)
def test_native_kernels_compute_nearly_the_same_logits(kind: str, quantization: str, tmp_path: Path) -> None:
    folder, probabilities = save_bridged(kind, tmp_path), []
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
    for kernels, dtype, rounding in (("torch", "float32", "none"), ("native", "bfloat16", quantization)):
        with LLM(folder, num_blocks=200, dtype=dtype, kernels=kernels, quantization=rounding) as llm:
            made = llm.generate(PROMPTS[2:4], params, use_tqdm=False)
            assert ("native" in llm.startup_report["kernels"]) == (kernels == "native")
        probabilities.append([output.outputs[0].logprobs[0] for output in made])
    for exact, found in zip(*probabilities, strict=True):
        best = max(exact, key=lambda token: exact[token].logprob)
        assert best in found and abs(found[best].logprob - exact[best].logprob) < 1.0


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["gpt2", "opt", "gemma2", "phi3", "falcon", "mixtral"])
def test_native_kernels_are_as_exact_in_float32_as_torch(kind: str, dtype: str, tmp_path: Path) -> None:
    need_native()
    bridged_model(kind, 0, torch.float32).to(getattr(torch, dtype)).save_pretrained(tmp_path)
    params, found = SamplingParams(temperature=0, max_tokens=4, logprobs=20, ignore_eos=True), []
    for options in ({"dtype": "float64"}, {"dtype": "float32", "kernels": "torch"}, {}):
        with LLM(tmp_path, num_blocks=200, model_impl="transformers", **options) as llm:
            made = llm.generate(PROMPTS[2:4], params, use_tqdm=False)
            assert ("native" in llm.startup_report["kernels"]) == (options == {})
        logprobs = [each.logprob for output in made for each in output.outputs[0].token_logprobs]
        found.append(torch.tensor(logprobs, dtype=torch.float64))
    exact, plain, native = found
    assert (native - exact).abs().max() <= 3 * (plain - exact).abs().max() + 1e-5


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_modules_have_a_cache_of_8_bit_floats_as_our_own_architectures(kind: str, tmp_path: Path) -> None:
    folder, results = save_tiny(kind, tmp_path), []
    options: dict[str, Any] = {"dtype": "float64", "device": "cpu", "num_blocks": 200, "max_chunk_tokens": 8}
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
    for model_impl, cache in (("native", "fp8"), ("transformers", "fp8"), ("transformers", "auto")):
        with LLM(folder, model_impl=model_impl, kv_cache_dtype=cache, **options) as llm:
            made = llm.generate([[5, 9, 17, 3, 80, 41, 7, 20, 66, 2, 8]], params, use_tqdm=False)
            results.append([each.logprob for each in made[0].outputs[0].token_logprobs])
    ours, theirs, exact = results
    assert theirs == pytest.approx(ours, abs=1e-9) and theirs != pytest.approx(exact, abs=1e-6)


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", BRIDGED)
def test_layers_are_measured_without_weights(kind: str, tmp_path: Path) -> None:
    folder = save_bridged(kind, tmp_path)
    model = loaded(folder, dtype="float64")
    made, runs = model.config, dict(model.report)["implementation"]
    assert ("paged attention" in runs) == (BRIDGED[kind].runs == "paged")
    (folder / "model.safetensors").unlink()
    layers = measure_layers(folder, shape_of(folder))
    assert layers is not None and ("paged attention" in layers.report) == (BRIDGED[kind].runs == "paged")
    assert (layers.windows, layers.num_kv_heads, layers.head_dim) == (
        made.layer_windows, made.num_kv_heads, made.head_dim,
    )  # fmt: skip


@pytest.mark.full
def test_a_model_that_is_refused_is_refused_without_its_weights(tmp_path: Path) -> None:
    config = transformers.OpenAIGPTConfig(vocab_size=304, n_embd=64, n_layer=2, n_head=4)
    folder, messages = save_config(tmp_path, config), []
    for look in (lambda: measure_layers(folder, shape_of(folder)), lambda: loaded(folder, dtype="float32")):
        with pytest.raises(UnsupportedArchitecture) as raised:
            look()
        messages.append(raised.value.message)
    assert messages[0] == messages[1] and messages[0].startswith("OpenAIGPTLMHeadModel cannot run on a paged KV cache")


def test_what_transformers_keeps_in_float32_is_not_rounded_to_float16(tmp_path: Path) -> None:
    need_native()
    folder = save_bridged("olmo2", tmp_path)
    kept = "model.layers.1.post_attention_layernorm.weight"
    made = transformers.Olmo2ForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        made.get_parameter(kept).add_(2.0**-13)
    made.save_pretrained(folder)
    exact = {name: parameter.clone() for name, parameter in made.named_parameters()}
    made._keep_in_fp32_modules = ["post_attention_layernorm"]
    bridge._round_parameters(made, torch.float16)
    for name, parameter in made.named_parameters():
        is_kept = "post_attention_layernorm" in name
        assert torch.equal(parameter, exact[name] if is_kept else exact[name].half().float()), name
    assert not torch.equal(exact[kept], exact[kept].half().float())
