"""plan_report: sources of the numbers, what Chairlift runs today, and the table."""

from dataclasses import replace

import pytest

from chairlift.bench.planning.capacity import Targets
from chairlift.bench.planning.hardware_spec import Hardware
from chairlift.bench.planning.model_memory import ModelMemory
from chairlift.bench.planning.plan import CapacityPlan, PlanInput, make_plan
from chairlift.bench.planning.plan_report import plan_table, plan_values, sources
from chairlift.bench.planning.simulated_replica import RequestLoad
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.cli import replica_spec_options
from chairlift.cli.command_line import build_parser
from support_planning import published_shape

MACHINE = Hardware(gpus=0, memory=32 * 10**9, cores=4)


@pytest.fixture(scope="module")
def small() -> CapacityPlan:
    return make_plan(PlanInput(
        memory=ModelMemory(shape=published_shape("Qwen3-0.6B"), dtype="bfloat16"), hardware=MACHINE,
        load=RequestLoad(input=64, output=16), rate=1.0, targets=Targets(ttft=2.0, itl=0.1), count=40,
    ))  # fmt: skip


def test_a_plan_on_a_cpu_runs_today_with_the_command_for_a_replica(small: CapacityPlan) -> None:
    values = plan_values(small, "Qwen/Qwen3-0.6B", [])
    assert values["chairlift"] == {"runs_today": True, "problems": []} and values["ok"]
    command = values["advice"][0]
    assert command.startswith("each replica: chairlift serve Qwen/Qwen3-0.6B --max-model-len 80 --max-memory ")
    assert any("with 3 threads" in sentence for sentence in values["advice"])
    assert any("one replica has no spare" in sentence for sentence in values["advice"])
    assert values["model"]["parameters"] == 596_049_920 and values["capacity"]["rate_at_hand"] is None


@pytest.mark.parametrize(("gpus", "where"), [(0, "--cluster ray"), (8, "--replica-gpus 1 --gpu-ids 0,1,2")])
def test_several_replicas_come_with_the_command_of_a_fleet(small: CapacityPlan, gpus: int, where: str) -> None:
    given = replace(small.given, hardware=replace(MACHINE, gpus=gpus), rate=2.5 * small.capacity.rate)
    values = plan_values(replace(small, given=given), "MODEL", [])
    (sentence,) = [each for each in values["advice"] if "chairlift fleet" in each]
    command = sentence.partition(": ")[2]
    assert command.startswith(f"chairlift fleet MODEL --max-replicas 3 {where} --replica-option max-model-len=80 ")
    arguments = build_parser().parse_args(command.split()[1:])
    serve_arguments = replica_spec_options.serve_arguments(arguments.replica_option)
    replica_spec_options.check_serve_arguments("MODEL", serve_arguments)


def test_one_replica_is_no_fleet(small: CapacityPlan) -> None:
    assert not any("chairlift fleet" in each for each in plan_values(small, "MODEL", [])["advice"])


def test_sources_tell_what_is_exact_estimated_fitted_or_given(small: CapacityPlan) -> None:
    found = sources(small)
    assert (found["parameters"], found["weights"], found["kv_cache"]) == ("exact", "exact", "exact")
    assert (found["device_speed"], found["step_times"], found["replicas"]) == ("estimated", "estimated", "simulated")
    assert found["cost"] == "none"
    shape, given = replace(small.given.memory.shape, is_exact=False), small.given
    changed = replace(
        given, memory=replace(given.memory, shape=shape), step_model=SimStepModel(step=1.0),
        hardware=replace(MACHINE, bandwidth=1e11, speed=1e12, price=1.0),
    )  # fmt: skip
    found = sources(replace(small, given=changed))
    assert (found["parameters"], found["weights"], found["kv_cache"]) == ("estimated",) * 3
    assert (found["device_speed"], found["step_times"], found["cost"]) == ("given", "fitted", "given")
    int8 = replace(small, given=replace(given, memory=replace(given.memory, quantization="int8")))
    assert sources(int8)["weights"] == "estimated"


def test_what_chairlift_cannot_run_is_named(small: CapacityPlan) -> None:
    split = replace(small, replica=replace(small.replica, sizes=replace(small.replica.sizes, tensor=4)))
    values = plan_values(split, "x", ["the weights are quantized with AWQ"])
    problems = values["chairlift"]["problems"]
    assert not values["chairlift"]["runs_today"] and problems[0] == "the weights are quantized with AWQ"
    assert problems[1].startswith("a replica needs 4 devices (tensor 4, pipeline 1, context 1), and Chairlift runs")
    assert not any("chairlift serve" in sentence for sentence in values["advice"])
    lines = plan_table(values)
    assert "Chairlift cannot run this plan:" in lines and f"  {problems[1]}" in lines


def test_a_narrow_table_has_the_same_words_in_more_lines(small: CapacityPlan) -> None:
    values = plan_values(small, "x", ["a problem " * 20])
    wide, narrow = plan_table(values), plan_table(values, 80)
    assert max(map(len, narrow)) <= 80 < max(map(len, wide)) and len(narrow) > len(wide)
    assert sorted(" ".join(narrow).split()) == sorted(" ".join(wide).split())
    assert plan_table(values, 1000) == [line.rstrip() for line in wide]


def test_missing_gpus_are_said_with_what_those_at_hand_serve(small: CapacityPlan) -> None:
    few = replace(small, given=replace(small.given, hardware=replace(MACHINE, gpus=1, cores=0), rate=1e4))
    values = plan_values(few, "x", [])
    assert not values["ok"] and values["advice"][0].startswith(f"{few.missing_devices} GPUs are missing; the 1 at hand")


def test_every_row_of_the_table_has_a_source(small: CapacityPlan) -> None:
    priced = replace(small, given=replace(small.given, hardware=replace(MACHINE, price=0.5)))
    lines = plan_table(plan_values(priced, "x", []))
    rows = lines[: lines.index("")]
    assert {row.split()[-1] for row in rows} == {"exact", "given", "estimated", "simulated"}
    assert any(row.startswith("weights") and "1.2 GB (bfloat16)" in row for row in rows)
    assert any(row.startswith("cost of 10^6 tokens") for row in rows)
    assert any(row.startswith("replicas") and "1 (1 devices)" in row for row in rows)
