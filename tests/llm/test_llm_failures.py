"""LLM: errors of single requests, timeouts, full queues, interrupts and closing."""

import signal
import threading
import time
from typing import Any

import pytest

from chairlift import LLM, SamplingParams
from chairlift.core.errors import DetokenizeFailed, EngineDead, ForwardFailed, NonFiniteLogits, RequestTimeout
from chairlift.engine.runner.fake_model import FakeConfig
from support_services import AsciiTokenizer, Gate, fake_service, is_idle, text_of, tokens_of, wait_until

SEEDED = SamplingParams(max_tokens=24, seed=3)


def run(llm: LLM, prompts: Any, params: Any = SEEDED, **options: Any) -> Any:
    return llm.generate(prompts, params, use_tqdm=False, **options)


@pytest.mark.parametrize(("fault", "error_type"), [("nan", NonFiniteLogits), ("poison", ForwardFailed)])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_that_fails_does_not_raise_and_its_neighbours_do_not_notice(
    fault: str, error_type: type[Exception], overlap: bool
) -> None:
    failing = 126  # a token that no neighbour has
    neighbours = [
        (prompt, params)
        for prompt, params in ((f"prompt {n}", SamplingParams(max_tokens=16, seed=n)) for n in range(40))
        if failing not in tokens_of(prompt, params)
    ][:8]
    config = FakeConfig(
        vocab_size=128, max_model_len=512, num_blocks=128, block_size=4,
        nan=failing if fault == "nan" else None, poison=failing if fault == "poison" else None,
    )  # fmt: skip
    prompts = [prompt for prompt, _ in neighbours]
    service = fake_service(config, overlap=overlap)
    with LLM.from_service(service) as llm:
        params = [params for _, params in neighbours]
        results = run(llm, [*prompts[:4], "bad " + chr(failing), *prompts[4:]], [*params[:4], SEEDED, *params[4:]])
        failed = results.pop(4)
        assert is_idle(service) and llm.check_integrity() == []
    assert len(neighbours) == 8
    assert isinstance(failed.error, error_type)
    assert failed.outputs[0].finish_reason == "error" and failed.outputs[0].token_ids == []
    assert [result.outputs[0].token_ids for result in results] == [tokens_of(*pair) for pair in neighbours]
    assert all(result.error is None for result in results)


def test_text_that_cannot_be_made_fails_that_request_alone() -> None:
    full = tokens_of("x", SEEDED)
    broken = full[12]
    at = full.index(broken)
    other = next(n for n in range(99) if broken not in tokens_of("x", SamplingParams(max_tokens=24, seed=n)))
    service = fake_service(tokenizer=AsciiTokenizer(broken=broken))
    with LLM.from_service(service) as llm:
        failing, other_result = run(llm, ["x", "x"], [SEEDED, SamplingParams(max_tokens=24, seed=other)])
        assert is_idle(service)
    assert isinstance(failing.error, DetokenizeFailed)
    assert failing.outputs[0].finish_reason == "error"
    assert failing.outputs[0].text == bytes(full[:at]).decode()
    assert failing.outputs[0].token_ids == full[: at + 1]
    assert other_result.error is None and other_result.outputs[0].text == text_of(
        "x", SamplingParams(max_tokens=24, seed=other)
    )


def test_a_timeout_keeps_the_output_so_far() -> None:
    gate = Gate(after=4)
    service = fake_service(hook=gate)
    with LLM.from_service(service) as llm:
        timer = threading.Timer(0.4, gate.opened.set)
        timer.start()
        (result,) = run(llm, "x", SamplingParams(max_tokens=400, seed=3), timeout=0.2)
        timer.join()
        assert is_idle(service)
    assert isinstance(result.error, RequestTimeout) and "0.2 s" in str(result.error)
    choice = result.outputs[0]
    assert choice.finish_reason == "error"
    assert 4 <= len(choice.token_ids) < 400
    assert choice.token_ids == tokens_of("x", SamplingParams(max_tokens=400, seed=3))[: len(choice.token_ids)]
    assert choice.text == bytes(choice.token_ids).decode()


def test_more_prompts_than_the_queue_holds_are_served_all_the_same() -> None:
    with LLM.from_service(fake_service(max_queue_size=3, max_running_requests=2)) as llm:
        results = run(llm, [f"prompt {number}" for number in range(20)])
    assert [result.error for result in results] == [None] * 20


def test_requests_of_two_threads_are_batched_even_when_they_fill_the_queue() -> None:
    service = fake_service(max_queue_size=4, max_running_requests=2)
    results_by_thread: dict[int, Any] = {}

    def generate_in_thread(number: int) -> None:
        prompts = [f"thread {number} prompt {n}" for n in range(15)]
        results_by_thread[number] = [
            (result.error, result.outputs[0].token_ids) for result in run(LLM.from_service(service), prompts)
        ]

    threads = [threading.Thread(target=generate_in_thread, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(3):
        assert results_by_thread[number] == [
            (None, tokens_of(f"thread {number} prompt {n}", SEEDED)) for n in range(15)
        ]
    assert is_idle(service)
    service.client.close()


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
def test_ctrl_c_aborts_what_is_open() -> None:
    gate = Gate(after=3)
    service = fake_service(hook=gate)

    main = threading.get_ident()

    def interrupt() -> None:
        gate.reached.wait(30)
        time.sleep(0.2)  # until the main thread waits: a signal just before a wait is handled only behind it
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(LLM.from_service(service), ["a", "b"], SamplingParams(max_tokens=300, seed=1))
    thread.join()
    gate.opened.set()
    wait_until(lambda: is_idle(service))
    assert service.client.scheduler_state()["finished_by_reason"]["abort"] == 2
    service.client.close()


def test_closing_ends_open_requests_with_an_error() -> None:
    gate = Gate(after=3)
    service = fake_service(hook=gate)
    llm = LLM.from_service(service)
    results_by_thread: list[Any] = []
    thread = threading.Thread(
        target=lambda: results_by_thread.extend(run(llm, ["a", "b"], SamplingParams(max_tokens=300, seed=1)))
    )
    thread.start()
    assert gate.reached.wait(30)
    closer = threading.Thread(target=llm.close)
    closer.start()
    gate.opened.set()
    closer.join(30)
    thread.join(30)
    assert [type(result.error) for result in results_by_thread] == [EngineDead, EngineDead]
    assert all(result.outputs[0].finish_reason == "error" for result in results_by_thread)


def test_a_closed_engine_says_so_and_may_be_closed_again() -> None:
    llm = LLM.from_service(fake_service())
    with llm:
        run(llm, "x")
    llm.close()
    with pytest.raises(EngineDead):
        run(llm, "x")
    with pytest.raises(EngineDead):
        llm.cache_state()


def test_the_state_lists_waiting_requests_in_order_with_the_reason() -> None:
    gate = Gate(after=2)
    service = fake_service(hook=gate, max_running_requests=1)
    llm = LLM.from_service(service)
    thread = threading.Thread(target=run, args=(llm, ["a", "b", "c"]))
    thread.start()
    assert gate.reached.wait(30)
    gate.after = 2
    threading.Timer(0.05, gate.opened.set).start()
    state = llm.scheduler_state()
    thread.join(30)
    service.client.close()
    assert (state["active_requests"], state["waiting_requests"]) == (1, 2)
    assert [name.rpartition("-")[2] for name in state["waiting_order"]] == ["1", "2"]
    assert set(state["wait_reasons"].values()) == {"running_limit"}
