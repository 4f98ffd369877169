"""EngineModel: one replica that is the real engine, with a scheduler and a KV cache, on a clock of its own."""

import math

from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest, SimStepOutputs
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.bench.simulation.step_duration_sampler import StepDurationSampler
from chairlift.core.clock import FakeClock
from chairlift.core.engine_output import EngineOutput
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.request_validation import validate_request
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig

ENGINE_VOCAB_SIZE = 49_152
TICK_SECONDS = 1e-3
"""Seconds that pass when requests wait but the scheduler launches nothing."""


class EngineModel:
    """Serves requests by EngineLoop and FakeRunner, whatever the configuration; see ServingModel."""

    def __init__(
        self, step_model: SimStepModel, config: SchedulerConfig, num_blocks: int, block_size: int, *,
        enable_prefix_caching: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        self.next_event_at = math.inf
        self.busy_seconds, self.output_tokens = 0.0, 0
        self._clock = FakeClock()
        self._timer = StepDurationSampler(step_model, seed)
        fake = FakeConfig(
            vocab_size=ENGINE_VOCAB_SIZE, max_model_len=config.max_model_len or num_blocks * block_size,
            num_blocks=num_blocks, block_size=block_size, verify=False,
        )  # fmt: skip
        self._loop = EngineLoop(
            FakeRunner(fake, clock=self._clock, step_time=self._timer), config,
            enable_prefix_caching=enable_prefix_caching, clock=self._clock, threaded=False,
        )  # fmt: skip
        self._loop.start()
        self._requests: dict[str, tuple[SimRequest, list[float]]] = {}  # with the time of the last token
        self._outputs: list[EngineOutput] = []  # of the step that runs
        self._runs_step = False
        self._started_at = 0.0

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the blocks that requests hold."""
        load = self._loop.load()
        return 1 - load.free_blocks / load.total_blocks

    def submit(self, request: SimRequest, now: float) -> None:
        """Queue a request; it can start at the end of the step that runs now."""
        if not self._runs_step:
            self._clock.advance(max(0.0, now - self._clock.now()))
            self.next_event_at = min(self.next_event_at, now)
        params = SamplingParams(temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True, seed=0)
        generate = GenerateRequest(
            request_id=str(request.index),
            prompt_token_ids=tuple(request.prompt_token_ids) or (0,) * request.prompt_tokens,
            params=params.with_defaults({}, max_tokens=request.output_tokens, seed=0),
        )  # fmt: skip
        self._requests[generate.request_id] = (request, [])
        self._outputs += self._loop.submit(validate_request(generate, self._loop.limits))

    def withdraw(self, request: SimRequest) -> bool:
        """Take back a request unless the step that runs brings its first token; return whether it was taken back."""
        request_id = str(request.index)
        if any(output.request_id == request_id for output in self._outputs):
            return False
        del self._requests[request_id]
        self._loop.abort(request_id)
        return True

    def advance(self) -> SimStepOutputs:
        """End the step that ends now, and run the next one."""
        now, outputs = self.next_event_at, SimStepOutputs()
        if self._runs_step:
            self.busy_seconds += now - self._started_at
        for output in self._outputs:
            self._handle_output(output, now, outputs)
        self._outputs, self._runs_step, self.next_event_at = [], False, math.inf
        if not self._loop.is_idle:
            before = self._clock.now()
            self._outputs = self._loop.step()
            if self._clock.now() == before:
                self._clock.advance(TICK_SECONDS)
            self._runs_step, self._started_at, self.next_event_at = True, now, self._clock.now()
        return outputs

    def update_progress(self, now: float) -> None:
        """Count the part of the step in progress as busy."""
        if self._runs_step:
            self.busy_seconds += now - self._started_at
            self._started_at = now

    def _handle_output(self, output: EngineOutput, now: float, outputs: SimStepOutputs) -> None:
        assert output.error is None, output.error
        request, last_token_at = self._requests[output.request_id]
        if output.token_ids:
            self.output_tokens += len(output.token_ids)
            request.output_token_ids += output.token_ids
            if request.first_token_at is None:
                request.first_token_at = now
                outputs.first_tokens.append(request)
            else:
                request.longest_gap_seconds = max(request.longest_gap_seconds, now - last_token_at[0])
            last_token_at[:] = [now]
        if output.usage is not None:
            request.cached_tokens = output.usage.cached_tokens
            del self._requests[output.request_id]
            outputs.finished.append(request)
