"""plan_values, plan_table: a plan as plain values, with the source of each number, and as a table for people.

exact       follows from config.json
given       an option, or measured on this machine
fitted      fitted to measured steps (--step-model)
estimated   a rule of thumb, or a default of roofline.py
simulated   the real scheduler on the step times above it
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from chairlift.bench.planning.model_memory import FILE
from chairlift.bench.planning.parallel_sizes_and_memory import gigabytes, max_pipeline, tensor_sizes
from chairlift.bench.planning.plan import CapacityPlan

SCHEMA = 1
KIND = "chairlift plan"
EXACT, GIVEN, FITTED, ESTIMATED, SIMULATED = "exact", "given", "fitted", "estimated", "simulated"
MIN_VALUE_WIDTH = 20
"""Least columns of the values in a narrow terminal."""

LEAST_DEDICATED_CORES = 3
"""Cores from which the native kernels leave one to the rest of the server."""


def plan_values(plan: CapacityPlan, model: str, problems: Sequence[str]) -> dict[str, Any]:
    """Return the plan as plain values with stable keys.

    Args:
        plan: the plan.
        model: the model as the user named it.
        problems: reasons why Chairlift cannot run the model as it is.
    """
    given, replica, memory = plan.given, plan.replica, plan.given.memory
    shape, sizes = memory.shape, replica.sizes
    return {
        "kind": KIND, "schema": SCHEMA,
        "model": {
            "name": model, "architecture": shape.architecture, "parameters": shape.parameters,
            "active_parameters": shape.active_parameters, "layers": shape.num_layers, "experts": shape.num_experts,
            "dtype": memory.dtype, "weight_bits": memory.matrix_bytes * 8, "weight_bytes": memory.weights,
            "kv_cache_dtype": memory.kv_cache_dtype, "kv_bytes_per_token": memory.kv_per_token,
            "kv_bytes_per_request": memory.kv_of_request(given.load.tokens),
        },
        "hardware": {
            "device": given.hardware.device, "gpus": given.hardware.gpus, "cores": given.hardware.cores,
            "memory_bytes": given.hardware.memory, "bandwidth": given.hardware.device_speed.bandwidth,
            "speed": given.hardware.device_speed.speed,
        },
        "load": {
            "rate": given.rate, "input": given.load.input, "output": given.load.output,
            "ttft_ms": given.targets.ttft * 1e3, "itl_ms": given.targets.itl * 1e3, "attainment": given.targets.share,
        },
        "replica": {
            "devices": sizes.devices, "tensor": sizes.tensor, "pipeline": sizes.pipeline, "context": sizes.context,
            "weight_bytes": replica.weights, "step_bytes": replica.step, "kv_bytes": replica.kv_cache,
            "usable_bytes": replica.usable, "requests_at_once": replica.num_requests,
            "tensor_sizes": tensor_sizes(shape), "max_pipeline": max_pipeline(shape), "others": dict(plan.others),
        },
        "step_model": {
            "step": plan.step_model.step, "row": plan.step_model.row, "prefill_token": plan.step_model.prefill_token,
            "context_token": plan.step_model.context_token, "prefill_pair": plan.step_model.prefill_pair,
            "origin": plan.step_model.origin, "time_shares": plan.step_shares,
        },
        "capacity": {
            "rate_per_replica": plan.capacity.rate, "replicas": plan.replicas, "devices": plan.devices,
            "utilization": plan.utilization, "busy": plan.at_rate.busy, "attainment": plan.at_rate.attainment,
            "ttft_ms": plan.at_rate.quantiles(plan.at_rate.ttft), "itl_ms": plan.at_rate.quantiles(plan.at_rate.itl),
            "ttft_ms_alone": plan.capacity.alone.ttft[0] * 1e3, "itl_ms_alone": plan.capacity.alone.itl[0] * 1e3,
            "mean_running": plan.at_rate.mean_running, "kv_peak": plan.at_rate.kv_peak, "trials": plan.capacity.trials,
            "missing_devices": plan.missing_devices,
            "rate_at_hand": plan.rate_at_hand if given.hardware.gpus else None,
        },
        "cost": {
            "per_hour": plan.cost_per_hour, "per_million_tokens": plan.cost_per_million(given.load.tokens),
            "per_million_output_tokens": plan.cost_per_million(given.load.output),
        },
        "sources": sources(plan),
        "chairlift": {"runs_today": not (found := _problems(plan, problems)), "problems": found},
        "advice": list(_advice(plan, model, found)), "ok": not plan.missing_devices,
    }  # fmt: skip


def sources(plan: CapacityPlan) -> dict[str, str]:
    """Return where the numbers of each part come from."""
    shape, hardware = plan.given.memory.shape, plan.given.hardware
    times = FITTED if plan.given.step_model is not None else ESTIMATED
    return {
        "parameters": EXACT if shape.is_exact else ESTIMATED,
        "weights": EXACT if shape.is_exact and not plan.given.memory.is_quantized else ESTIMATED,
        "kv_cache": EXACT if shape.is_exact else ESTIMATED, "oom_backoff": ESTIMATED, "parallel_sizes": ESTIMATED,
        "device_speed": ESTIMATED if hardware.has_default_speed else GIVEN, "step_times": times,
        "replicas": SIMULATED, "latencies": SIMULATED, "cost": GIVEN if hardware.price is not None else "none",
    }  # fmt: skip


def _problems(plan: CapacityPlan, problems: Sequence[str]) -> list[str]:
    """Return why Chairlift cannot run the plan today."""
    found, sizes = list(problems), plan.replica.sizes
    if sizes.devices > 1:
        found.append(
            f"a replica needs {sizes.devices} devices ({sizes}), and Chairlift runs plans on one device (its "
            "--tensor-parallel-size is not measured on GPUs): a server with these parallel sizes is needed"
        )
    return found


def _advice(plan: CapacityPlan, model: str, problems: Sequence[str]) -> Iterator[str]:
    """Yield what to do, one sentence each."""
    hardware, shares = plan.given.hardware, plan.step_shares
    if plan.missing_devices:
        yield (
            f"{plan.missing_devices} {hardware.device}s are missing; the {hardware.gpus} at hand serve "
            f"{plan.rate_at_hand:.3g} requests/s within the targets"
        )
    if not problems:
        yield f"each replica: {_replica_command(plan, model)}"
        if plan.replicas > 1 and not plan.missing_devices:
            where = "on one machine" if hardware.gpus else "on the machines of a Ray cluster"
            yield f"as many replicas as the load needs, {where}: {_fleet_command(plan, model)}"
    if not hardware.gpus:
        threads = hardware.cores - (hardware.cores >= LEAST_DEDICATED_CORES)
        yield (
            f"one replica for each machine, or for each NUMA node of a larger one (--memory and --cores of the node), "
            f"with {threads} threads"
        )
    if shares["constant"] > 0.5:
        yield (
            f"{shares['constant']:.0%} of the time is the constant part of a step, mostly reading the weights: memory "
            "bandwidth and --quantization make it shorter, and more requests at once cost little"
        )
    elif shares["products"] > 0.5:
        more = "faster GPUs" if hardware.gpus else "more cores"
        yield f"{shares['products']:.0%} of the time is matrix products: {more} and prefix caching make it faster"
    if plan.replicas == 1:
        yield "one replica has no spare: a second one keeps the service up when it fails"


def _replica_command(plan: CapacityPlan, model: str) -> str:
    return " ".join(["chairlift serve", model, *(f"--{name} {value}" for name, value in _options(plan))])


def _fleet_command(plan: CapacityPlan, model: str) -> str:
    hardware = plan.given.hardware
    words = ["chairlift fleet", model, f"--max-replicas {plan.replicas}"]
    if hardware.gpus:
        words += ["--replica-gpus 1", "--gpu-ids " + ",".join(map(str, range(plan.replicas)))]
    else:
        words.append("--cluster ray")
    return " ".join([*words, *(f"--replica-option {name}={value}" for name, value in _options(plan))])


def _options(plan: CapacityPlan) -> list[tuple[str, str]]:
    """Return the options of each replica's `chairlift serve`."""
    memory = plan.given.memory
    options = [("max-model-len", str(plan.given.load.tokens))]
    options += [("dtype", memory.dtype)] * (memory.shape.dtype != memory.dtype)
    options += [("quantization", memory.quantization)] * (memory.quantization != FILE)
    options += [("kv-cache-dtype", memory.kv_cache_dtype)] * (memory.kv_cache_dtype != "auto")
    return [*options, ("max-memory", f"{max(1, plan.replica.kv_cache // 10**6)}MB")]


def plan_table(values: dict[str, Any], columns: int | None = None) -> list[str]:
    """Return the lines of a plan for people, from its plain values, at most `columns` wide if that is possible."""
    source = values["sources"]
    rows = [(name, value, source.get(key, key)) for name, value, key in _rows(values)]
    names, longest, sources = (max(len(row[column]) for row in rows) for column in (0, 1, 2))
    width = longest if columns is None else max(MIN_VALUE_WIDTH, min(longest, columns - names - sources - 4))
    lines = []
    for name, value, key in rows:
        first, *others = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"{name:<{names}}  {first:<{width}}  {key}".rstrip())
        lines += [f"{'':<{names}}  {other}" for other in others]
    chairlift = values["chairlift"]
    lines += ["", "Chairlift runs this plan today" if chairlift["runs_today"] else "Chairlift cannot run this plan:"]
    sentences = [f"  {problem}" for problem in chairlift["problems"]] + [f"* {each}" for each in values["advice"]]
    for sentence in sentences:
        lines += [sentence] if columns is None else textwrap.wrap(
            sentence, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )  # fmt: skip
    return lines


def _rows(values: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and source of each row."""
    model, load, hardware = values["model"], values["load"], values["hardware"]
    active = f", {_count(model['active_parameters'])} a token" if model["experts"] else ""
    yield "model", f"{model['architecture']}, {_count(model['parameters'])} parameters{active}", "parameters"
    bits = f"{model['weight_bits']:.3g} bits" if values["sources"]["weights"] == ESTIMATED else model["dtype"]
    yield "weights", f"{gigabytes(model['weight_bytes'])} ({bits})", "weights"
    yield (
        "KV cache",
        f"{model['kv_bytes_per_token']} bytes a token, {gigabytes(model['kv_bytes_per_request'])} a request",
        "kv_cache",
    )
    cores = f", {hardware['cores']} cores" if hardware["cores"] else ""
    yield "device", f"{hardware['device']}, {gigabytes(hardware['memory_bytes'])}{cores}", GIVEN
    speed = f"{hardware['bandwidth'] / 1e9:.4g} GB/s, {hardware['speed'] / 1e12:.4g} TFLOPS"
    yield "device speed", speed, "device_speed"
    yield (
        "load",
        f"{load['rate']:g} requests/s of {load['input']} + {load['output']} tokens; {load['attainment']:.0%} within "
        f"{load['ttft_ms']:g} ms to the first token and {load['itl_ms']:g} ms between tokens",
        GIVEN,
    )
    yield from _replica_rows(values)
    if (per_hour := values["cost"]["per_hour"]) is not None:
        cost = values["cost"]
        yield "cost", f"{per_hour:.4g} an hour", "cost"
        yield (
            "cost of 10^6 tokens",
            f"{cost['per_million_tokens']:.3g}; {cost['per_million_output_tokens']:.3g} for output tokens alone",
            SIMULATED,
        )


def _replica_rows(values: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    replica, capacity = values["replica"], values["capacity"]
    yield (
        "replica",
        f"{replica['devices']} x {values['hardware']['device']}: tensor {replica['tensor']}, pipeline "
        f"{replica['pipeline']}, context {replica['context']}",
        "parallel_sizes",
    )
    yield (
        "memory of a device",
        f"{gigabytes(replica['weight_bytes'])} weights, {gigabytes(replica['step_bytes'])} a step, "
        f"{gigabytes(replica['kv_bytes'])} KV cache: {replica['requests_at_once']} requests at once",
        ESTIMATED,
    )
    shares = ", ".join(f"{share:.0%} {name}" for name, share in values["step_model"]["time_shares"].items())
    constant = f"{values['step_model']['step'] * 1e3:.3g} ms a step"
    yield "step times", f"{constant}; of the time {shares}".replace("kv_cache", "KV cache"), "step_times"
    yield "a replica serves", f"{capacity['rate_per_replica']:.3g} requests/s within the targets", "replicas"
    yield "replicas", f"{capacity['replicas']} ({capacity['devices']} devices)", "replicas"
    yield (
        "utilization",
        f"{capacity['utilization']:.0%} of that rate; a step runs {capacity['busy']:.0%} of the time, with "
        f"{capacity['mean_running']:.1f} requests",
        "replicas",
    )
    for name, key in (("time to first token", "ttft_ms"), ("time between tokens", "itl_ms")):
        each = capacity[key]
        yield (
            name,
            f"median {each['p50']:.4g} ms, p95 {each['p95']:.4g} ms; {capacity[key + '_alone']:.4g} ms alone",
            "latencies",
        )


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"
