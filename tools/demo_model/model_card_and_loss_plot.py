"""Model card: README.md of the demo model, written from the measured results, and the plot of the training loss."""

import json
from pathlib import Path
from typing import Any

from demo_model.conversations import HELD_OUT

TEXT = """\
# The demo model of Chairlift

A Llama of {millions:.2f} million parameters that chats: a toy, so that Chairlift can be tried offline with no other
model at hand. It streams, it fills in JSON, it calls tools, and it is wrong about nearly everything that it was not
taught. Name a Hugging Face folder or id wherever you want sense.

## What it is

| | |
|---|---|
| architecture | LlamaForCausalLM, {layers} layers of width {hidden}, MLP {mlp}, tied embeddings |
| attention | {heads} query heads on {kv_heads} key heads of {head_dim} |
| parameters | {parameters:,} in bfloat16 ({size:.1f} MB) |
| vocabulary | {vocabulary:,} tokens, byte-level BPE, ChatML |
| context | {context:,} tokens |
| language | plain English, some thousand words |
| license | Apache-2.0, as Chairlift; no foreign text, weights or data went into it |

Its chat template takes system, user, assistant and tool messages and `tools`; a tool call is
`<tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call>`. Its `generation_config.json` asks for greedy decoding.

## What it can and cannot do

Share of held-out prompts answered right, greedily, in float32, without grammars. One prompt in {held_out} is held
out by a hash of what is said in it, so the training has seen none of them. An answer counts when it is the one that was
taught; where several are right (a list, a story, JSON, a call), a check decides.

| skill | prompts | right |
|---|---|---|
{shares}

It knows some capitals, opposites, legs and planets, knows what Chairlift and its words mean, and remembers what it was
told a few messages ago. It cannot reason, translate, write code or do sums beyond two digits, and it speaks no other
language. What it does not know it often admits ("I don't know that."), and often not. It was made to be tried and to be
tested with, not for use.

## How it was made

`make demo-model` in a clone of the repository makes it again: seed {seed}, {steps:,} steps of {step_tokens:,} tokens
({tokens:.0f} million in all), {hours:.1f} hours on {hardware}. Every conversation
comes from a seeded generator (`tools/demo_model`); only what the assistant says is learnt, and some plain text. The
matrices of the layers are trained with Muon, everything else with AdamW, under bfloat16 autocast. On another processor,
or with other versions, the last bits of sums differ, and so will the weights.

![Loss over the steps](loss.png)

Beside this card: `training.jsonl` (the log), `training.json` (seed, hardware, versions) and `examination.json` (every
skill, with some of the answers that were wrong).
"""


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the training's log."""
    return [json.loads(line) for line in (folder / "training.jsonl").read_text(encoding="utf-8").splitlines()]


def draw_loss(folder: Path) -> None:
    """Draw loss.png: the held-out loss of all skills and of each."""
    from matplotlib.figure import Figure

    log = read_log(folder)
    steps = [entry["step"] for entry in log]
    figure = Figure(figsize=(9, 5.5), dpi=90, layout="constrained")
    axes = figure.subplots()
    for skill in log[-1]["by_skill"]:
        axes.plot(steps, [max(entry["by_skill"][skill], 1e-4) for entry in log], linewidth=0.8, label=skill)
    axes.plot(steps, [entry["held_out_loss"] for entry in log], color="black", linewidth=2, label="all, held out")
    axes.set(xlabel="step", ylabel="cross-entropy of held-out answers (nats a token)", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, fontsize=7)
    figure.savefig(folder / "loss.png", metadata={"Software": None})


def write(folder: Path) -> None:
    """Write README.md into a folder that was trained and examined."""
    config, training, examined = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("config", "training", "examination")
    )
    rows = (
        f"| {skill} | {found['tasks']} | {found['right'] / found['tasks']:.1%} |" for skill, found in examined.items()
    )
    weights = folder / "model.safetensors"
    text = TEXT.format(
        millions=training["parameters"] / 1e6, parameters=training["parameters"], size=weights.stat().st_size / 1e6,
        layers=config["num_hidden_layers"], hidden=config["hidden_size"], mlp=config["intermediate_size"],
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"],
        vocabulary=config["vocab_size"], context=config["max_position_embeddings"], held_out=HELD_OUT,
        shares="\n".join(rows), seed=training["seed"], steps=training["steps"], step_tokens=training["step_tokens"],
        tokens=training["steps"] * training["step_tokens"] / 1e6, hours=training["seconds"] / 3600,
        hardware=f"{training['threads']} threads on {training['hardware']['cpu']}",
    )  # fmt: skip
    (folder / "README.md").write_text(text, encoding="utf-8")
