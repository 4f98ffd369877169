"""attach: gives a loaded model of transformers the methods of its continuous batching, over Chairlift's engine."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, TypeVar

from chairlift.core.errors import ConfigError
from chairlift.llm.progress_bar import ProgressBar
from chairlift.llm.transformers_compat.engine_source import engine_source
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.manager import KEPT, ContinuousBatchingManager

log = logging.getLogger("ContinuousBatchingLogger")

ModelT = TypeVar("ModelT")


def attach(model: ModelT) -> ModelT:
    """Set the methods of continuous batching on a loaded model; return the model.

    The class of the model, its attention and its parameters stay as they are; the engine shares the parameters.
    """
    for method in (
        init_continuous_batching, continuous_batching_context_manager, generate_batch,
        destroy_cached_continuous_batching_manager,
    ):  # fmt: skip
        setattr(model, method.__name__, MethodType(method, model))
    return model


def init_continuous_batching(
    model: Any, generation_config: Any = None, continuous_batching_config: Any = None, workload_hints: Any = None,
    **knobs: Any,
) -> ContinuousBatchingManager:  # fmt: skip
    """Return a manager of the model: the one that was kept for the next session, or a new one.

    A kept manager is replaced when the arguments ask for other options than it has.
    """
    kept = model.__dict__.get(KEPT)
    if isinstance(kept, ContinuousBatchingManager):
        given = generation_config is not None or continuous_batching_config is not None or knobs
        is_in_use = kept.is_running() and not kept.stop_event.is_set()
        if is_in_use or not given or kept.settings == engine_source(
            model, generation_config, continuous_batching_config, knobs
        ).settings:  # fmt: skip
            log.info("the manager of the last session is used again; "
                     "destroy_cached_continuous_batching_manager() ends it")  # fmt: skip
            return kept
        log.info("the manager of the last session has other options and is replaced")
        kept.destroy()
    return ContinuousBatchingManager(model, generation_config, continuous_batching_config, workload_hints, **knobs)


def destroy_cached_continuous_batching_manager(model: Any) -> None:
    """Stop and free the manager that was kept for the next session; does nothing without one."""
    kept = model.__dict__.get(KEPT)
    if isinstance(kept, ContinuousBatchingManager):
        kept.destroy()


@contextmanager
def continuous_batching_context_manager(
    model: Any, generation_config: Any = None, block: bool = True, timeout: float | None = None,
    continuous_batching_config: Any = None, persistent_manager: bool = False, warmup: bool = True,
    workload_hints: Any = None, **knobs: Any,
) -> Iterator[ContinuousBatchingManager]:  # fmt: skip
    """Start a manager of the model, and stop it at the end of the context.

    Args besides those of ContinuousBatchingManager:
        block: whether the end of the context waits until the open requests have ended.
        timeout: seconds to wait at most.
        persistent_manager: keep the manager, its engine and its cache for the next session.
        warmup: run the engine's largest steps before the first request.

    After an exception in the context the open requests fail, and the manager is not kept.
    """
    manager = init_continuous_batching(
        model, generation_config, continuous_batching_config, workload_hints, **knobs
    )  # fmt: skip
    try:
        if warmup and not manager.warmed_up:
            manager.warmup()
        manager.start()
        yield manager
    except BaseException:
        if manager.is_running():
            manager.stop(hard_stop=True, timeout=timeout)
        manager.destroy()
        raise
    manager.stop(block=block, timeout=timeout, keep_for_next_session=persistent_manager)


def generate_batch(
    model: Any, inputs: Sequence[Sequence[int]], generation_config: Any = None, continuous_batching_config: Any = None,
    record_timestamps: bool = False, progress_bar: bool = False, persistent_manager: bool = False,
    warmup: bool = True, max_new_tokens: int | None = None, **knobs: Any,
) -> dict[str, GenerationOutput]:  # fmt: skip
    """Generate outputs of a batch of prompts; return them by request id, in the order of the prompts.

    A request that fails has its reason in `error`; the others are not affected. With num_return_sequences the further
    outputs of a prompt come before the one that has its id.

    Args besides those of continuous_batching_context_manager:
        inputs: token ids of the prompts.
        record_timestamps: whether outputs have the time of each token.
        progress_bar: show a progress bar on stderr.
        max_new_tokens: output tokens of each request at most.
    """
    if len(inputs) == 0:
        return {}
    if knobs.pop("streaming", False):
        raise ConfigError("generate_batch does not stream; use add_request(..., streaming=True)", option="streaming")
    with continuous_batching_context_manager(
        model, generation_config, True, None, continuous_batching_config, persistent_manager, warmup, **knobs
    ) as manager:
        count = manager.num_return_sequences
        with ProgressBar(len(inputs) * count, shown=progress_bar) as progress:
            ids = manager.add_requests(inputs, max_new_tokens, record_timestamps=record_timestamps)
            names = [name for each in ids for name in (*(f"{each}__child#{index}" for index in range(count - 1)), each)]
            results: dict[str, GenerationOutput] = {}
            for name in names:
                output = manager.get_result(name)
                assert output is not None, "an accepted request has no last output"
                results[name] = output
                progress.tokens(len(output.generated_tokens))
                progress.request_done()
    if failed := [name for name, output in results.items() if output.error is not None]:
        log.error("%d of %d requests failed, the first is %s: %s", len(failed), len(results), failed[0],
                  results[failed[0]].error)  # fmt: skip
    return results
