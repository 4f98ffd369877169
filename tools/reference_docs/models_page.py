"""models_page: docs/models.md, the architectures that the tests run and those that are refused, with the sentences.

The tests of this module compare PAGED and BY_SEQUENCE with the models of tests/oracle/test_transformers_models.py, and
AT_LOAD with the errors of small models that are loaded.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.gguf_architectures import GGUF_ARCHITECTURES
from chairlift.model.config.gguf_types import GGML_TYPES
from chairlift.model.config.select_model_config import parse_config
from chairlift.text.gguf_pre_tokenizers import PRE_TOKENIZERS
from reference_docs.markdown import make_page, make_table

INTRO = """# Models

A model is a folder in the format of transformers whose architecture predicts the next token, or a GGUF file. The name
of the architecture is in `architectures` of config.json. `chairlift doctor MODEL` says which implementation runs a
model, what it needs, and why it cannot run.

`--model-impl auto`, the default, is `native` where Chairlift has the architecture and all features that config.json
names, else `transformers`.

## Native

Chairlift's own layers. On CPUs all layers are one call of the native kernels."""

GGUF = """## GGUF files

    chairlift serve model.gguf                      a file, or any one of split files
    chairlift serve user/repo:Q4_K_M                of a repository on the hub the file of this type
    chairlift serve -hf user/repo:Q4_K_M            the same, and so is hf.co/user/repo:Q4_K_M
    chairlift serve user/repo --hf-file FILE.gguf   a file by its name

Without a type it is Q4_K_M, else Q8_0, else the first file. Of the GGUF files only that one and those that belong to it
are downloaded.
Sizes, tokenizer, chat template, ends of turns and sampling defaults come from the file; no other files are needed. What
is made of them is kept in the user's cache (`CHAIRLIFT_CACHE`, else `XDG_CACHE_HOME`, else ~/.cache).

* Versions 2 and 3, little-endian, with tensors of the types {types}, in any mixture.
* Architectures: {architectures}.
* Tokenizers: byte-level BPE with the pre-tokenizers {pre_tokenizers}; SentencePiece. For another one
  `--tokenizer FOLDER_OR_ID` names a tokenizer.
* Vision parts (mmproj), calibration data (imatrix), LoRA adapters, types below 4 bits, big-endian files and version 1
  are refused with what to use instead.

The native kernels multiply by the codes and scales of the file as they are, whatever mixture of types it has, and round
only the inputs of products, to 8 bits for each 32 of them, as llama.cpp does. Weights take the memory that they take in
the file, and up to 3 % more (MXFP4: 6 %). Queries, keys and values of which one has no codes (F16, BF16, F32) are
dequantized together, and so are the two weights of a gate whose types differ; the startup report has their share. With
`--quantization none` and with torch's kernels all are: exactly in float32, then rounded to the `--dtype` of the model.
`--quantization int8` and `int4` round the numbers again.

On a GPU the codes of 4 bits (Q4_0, Q4_1, Q4_K) are kept, and dequantized to the `--dtype` in each product by a kernel
of Triton; other types are dequantized when they are loaded. That kernel has not run on a GPU yet."""

QUANTIZED = """## Quantized folders

Folders in the format of transformers whose weights are quantized, by the `quantization_config` of config.json:

* AWQ (gemm, 4 bits) and GPTQ (versions 1 and 2, 2, 3, 4 and 8 bits, act-order, overrides by module), also the older
  folders with quant_config.json or quantize_config.json;
* compressed-tensors: pack-quantized, int-quantized, float-quantized, several groups;
* fp8 and fbgemm_fp8: scales for a tensor, for rows or for blocks;
* bitsandbytes: nf4 and fp4, with double quantization too, and int8.

Which weights are quantized is read from the tensors. The native kernels multiply by codes of 2, 3 and 4 bits, and by
those of 8 bits without zero points, as in GGUF files: as blocks of 32 inputs of the types Q4_0, Q4_1 and Q8_0, which
take 4.5, 5 and 8.5 bits a weight. Other weights are dequantized when they are loaded: act-order, groups that 32 does
not divide, floats of 8 bits, bitsandbytes, and all with torch's kernels and by transformers' modules. On GPUs it is as
with GGUF files. Activations are not quantized by such an entry."""

STATES = """Models with layers that keep a state run on one rank: on CPUs, and by Triton's kernels on NVIDIA GPUs of
compute capability 8.0 and higher, with a `--block-size` that is a multiple of 16 and without CUDA graphs. These kernels
were run by Triton's interpreter and compiled for such GPUs; a GPU was not at hand yet. `--max-running-requests` is
lowered to as many states as the memory for caches holds; the startup report says how many that are."""

GEMMA4 = """Gemma 4 runs on one rank, and not from GGUF files. Weights for images and sound are left out;
`use_bidirectional_attention` "vision" is about images alone, "all" is refused. E2B and E4B have a second embedding
table, of inputs of their layers: with an int8 or int4 `--quantization` it has the codes of the lm_head, else the dtype
of the model. A step reads one row of it for each token."""

BRIDGED_INTRO = """## By transformers' modules

`pip install 'chairlift[transformers]'`. The modules of transformers compute the layers, over the paged KV cache of this
engine: continuous batching, chunked prefill, prefix caching, preemption and sampling are those of native models. On
CPUs in bfloat16, float16 and float32 their linear layers, norms, attention and lm_head use the native kernels.

Every model is compared with transformers' own attention on a few tokens when it is loaded, and refused if it differs.
An architecture that is not in these tables may run, too. Those in the tables generate the tokens of transformers'
`generate()` in the tests, in float64, with the combinations of chunks, block sizes, prefix hits, preemptions, windows
and policies that native architectures are tested with.

### On the paged attention

The layers use transformers' attention interface. Windows, soft caps, scales and sinks are those of its calls."""

BY_SEQUENCE_INTRO = """### One sequence after another

The layers compute attention by themselves, with the paged KV cache in the place of transformers' `Cache`. Each sequence
of a step is a pass of its own, so a batch is hardly faster than its sequences one by one."""

LONG_ROPE = """### RoPE "longrope"

Phi-3 and others have two sets of factors. All sequences of an engine have the same set: the short factors up to the
original length, which is the default of `max_model_len`, and the long ones if `max_model_len` is greater."""

REFUSED_INTRO = """## Refused

These are refused when the server starts, with these sentences."""

AT_LOAD_INTRO = """A checkpoint may have more tensors than one of Chairlift's own architectures uses. Those that stand
beside what is computed are left out, and one warning counts them: heads of other tasks (`score`, `v_head`), layers that
predict further tokens (`mtp`), modules for images or audio. A part of what is computed is refused, since the tokens
would be wrong without it: a bias, the scales of quantized weights, a norm within a layer, a further layer, an adapter
that is not merged.

Others are refused when their layers are measured or compared:"""

PAGED: Mapping[str, str] = {
    "Cohere2ForCausalLM": "sliding window in some layers, parallel layers",
    "DeepseekV3ForCausalLM": "experts, latent attention with values narrower than keys",
    "Exaone4ForCausalLM": "sliding window in some layers",
    "GPT2LMHeadModel": "learned positions",
    "GPTBigCodeForCausalLM": "learned positions, one key/value head",
    "GPTNeoXForCausalLM": "partial RoPE, parallel layers",
    "MoshiForCausalLM": "the text decoder alone, up to the length of its window",
    "NemotronForCausalLM": "partial RoPE",
    "OPTForCausalLM": "learned positions",
    "PhiForCausalLM": "partial RoPE, parallel layers",
    "Starcoder2ForCausalLM": "sliding window",
}
"""Architecture that the tests run on the paged attention -> what is special in it."""

BY_SEQUENCE: Mapping[str, str] = {
    "BartForCausalLM": "learned positions, the decoder of an encoder-decoder",
    "BloomForCausalLM": "ALiBi",
    "DiffLlamaForCausalLM": "the difference of two attentions",
    "FalconForCausalLM": "one key/value head, parallel layers",
    "GPTJForCausalLM": "partial RoPE, parallel layers",
    "GPTNeoForCausalLM": "learned positions, local attention in some layers",
    "Llama4ForCausalLM": "attention in chunks and a temperature of queries in some layers, experts",
    "MptForCausalLM": "ALiBi",
}
"""The same for architectures that run one sequence after another."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "a state-space model": {"architectures": ["MambaForCausalLM"], "state_size": 16},
    "state-space layers beside attention": {"architectures": ["JambaForCausalLM"], "attn_layer_period": 8},
    "linear attention": {
        "architectures": ["OlmoHybridForCausalLM"], "layer_types": ["linear_attention", "full_attention"],
    },
    "convolutions": {"architectures": ["Lfm2MoeForCausalLM"], "layer_types": ["conv", "full_attention"]},
    "attention to chosen tokens": {"architectures": ["DeepseekV32ForCausalLM"], "layer_types": ["indexed_attention"]},
    "an encoder-decoder": {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
    "images or audio": {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": {}},
    "an encoder": {"architectures": ["BertForMaskedLM"]},
    "code in the model folder": {
        "architectures": ["FooForCausalLM"], "model_type": "foo", "auto_map": {"AutoModelForCausalLM": "foo.Foo"},
    },
    "quantized weights": {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "hqq"}},
}  # fmt: skip
"""Kind of model -> the fields of a config.json of this kind."""

AT_LOAD: Mapping[str, str] = {
    "BertLMHeadModel": "the tokens of this model attend to later tokens, which no KV cache has; it is not causal",
    "BigBirdForCausalLM": "BigBirdForCausalLM cannot run on a paged KV cache: its layers attend to blocks of tokens in "
    "passes over more than 704 tokens (attention_type in config.json); set max_model_len to at most 704",
    "MoshiForCausalLM": "MoshiForCausalLM cannot run on a paged KV cache: transformers' cache keeps the last 512 "
    "tokens of layer 0, but its mask sees all tokens, so its generate() and its forward pass make different tokens; "
    "set max_model_len to at most 512",
    "OpenAIGPTLMHeadModel": "OpenAIGPTLMHeadModel cannot run on a paged KV cache: 2 of its 2 layers do not use "
    "transformers' attention interface. One sequence after another: not all of its 2 layers keep keys and values in "
    "transformers' cache",
}
"""Architecture that config.json does not rule out -> the sentence of its error."""


def _native() -> list[tuple[str, str]]:
    return [(f"`{name}`", entry.models) for name, entry in ARCHITECTURES.items()]


def _gguf() -> str:
    text = GGUF.format(
        types=", ".join(kind.name for kind in GGML_TYPES.values()), architectures=", ".join(GGUF_ARCHITECTURES),
        pre_tokenizers=", ".join(sorted(PRE_TOKENIZERS)),
    )  # fmt: skip
    head, *items = text.split("\n* ")
    *items, last = items
    last, _, end = last.partition("\n\n")
    wrapped = [
        textwrap.fill(f"* {' '.join(item.split())}", 118, subsequent_indent="  ", break_on_hyphens=False)
        for item in (*items, last)
    ]
    return "\n".join((head, *wrapped, "", end))


def models_page() -> str:
    """Return docs/models.md."""
    head = ("architecture", "special in it")
    return make_page(
        INTRO, make_table(("architecture", "models"), _native()), STATES, GEMMA4, _gguf(), QUANTIZED, BRIDGED_INTRO,
        make_table(head, _rows(PAGED)), BY_SEQUENCE_INTRO, make_table(head, _rows(BY_SEQUENCE)), LONG_ROPE,
        REFUSED_INTRO,
        make_table(("model", "sentence"), ((kind, refusal(content)) for kind, content in REFUSED.items())),
        AT_LOAD_INTRO, make_table(("architecture", "sentence"), _rows(AT_LOAD)),
    )  # fmt: skip


def refusal(content: Mapping[str, Any]) -> str:
    """Return the sentence of the error for a config.json. Raises ValueError for a model that is not refused."""
    try:
        parse_config(content)
    except ModelError as error:
        return error.message
    raise ValueError(f"{content['architectures']} is not refused")


def _rows(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", text) for name, text in texts.items()]
