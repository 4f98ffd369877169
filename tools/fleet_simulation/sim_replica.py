"""SimReplica: one replica of a simulated fleet, which is the real engine on a clock of its own."""

from dataclasses import replace

from chairlift.bench.simulation.sim_step_model import SimStepModel, StepTimer
from chairlift.core.clock import FakeClock
from chairlift.core.request import EngineOutput, GenerateRequest
from chairlift.core.sampling import SamplingParams
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.request_limits import validate_request
from chairlift.engine.runner.fake import FakeConfig, FakeRunner
from chairlift.router.policies.base import Candidate

BLOCK_SIZE = 16
MAX_MODEL_LEN = 16_384
MAX_RUNNING_REQUESTS = 16
TICK_SECONDS = 1e-3


class SimReplica:
    """Serves requests step by step; the time of a step comes from a model of the machine."""

    def __init__(self, replica_id: str, step_model: SimStepModel, num_blocks: int, vocab_size: int, seed: int) -> None:
        self.clock = FakeClock()
        self._speed = 1.0 / step_model.prefill_token
        config = FakeConfig(
            vocab_size=vocab_size, max_model_len=MAX_MODEL_LEN, num_blocks=num_blocks, block_size=BLOCK_SIZE,
            verify=False,
        )  # fmt: skip
        self._loop = EngineLoop(
            FakeRunner(config, clock=self.clock, step_time=StepTimer(step_model, seed)),
            SchedulerConfig(max_running_requests=MAX_RUNNING_REQUESTS),
            clock=self.clock, threaded=False,
        )  # fmt: skip
        self._loop.start()
        self.candidate = Candidate(replica_id=replica_id, prefill_tokens_per_second=self._speed)

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return self._loop.is_idle

    def submit(self, request_id: str, prompt: tuple[int, ...], answer_tokens: int, now: float) -> list[EngineOutput]:
        """Submit a request at `now`, or at the end of the step that runs then."""
        self.clock.advance(max(0.0, now - self.clock.now()))
        params = SamplingParams(temperature=0.0, max_tokens=answer_tokens, ignore_eos=True, seed=0)
        request = GenerateRequest(
            request_id=request_id, prompt_token_ids=prompt,
            params=params.with_defaults({}, max_tokens=answer_tokens, seed=0),
        )  # fmt: skip
        return self._loop.submit(validate_request(request, self._loop.limits))

    def step(self) -> list[EngineOutput]:
        """Run one step, which moves the clock."""
        before = self.clock.now()
        outputs = self._loop.step()
        if not outputs and self.clock.now() == before:
            self.clock.advance(TICK_SECONDS)
        return outputs

    def report_load(self) -> None:
        """Update the candidate's load report."""
        load = self._loop.load()
        self.candidate = replace(
            self.candidate, waiting_tokens=load.waiting_tokens, running_requests=load.running_requests,
            expected_wait_seconds=load.waiting_tokens / self._speed,
        )  # fmt: skip

    def count_open(self, num_requests: int, prefill_tokens: int) -> None:
        """Change the router's counts of open requests, and of their prompt tokens until the first output token."""
        self.candidate = replace(
            self.candidate, open_requests=self.candidate.open_requests + num_requests,
            pending_prefill_tokens=self.candidate.pending_prefill_tokens + prefill_tokens,
        )  # fmt: skip

    def stop(self) -> None:
        """Stop the engine."""
        self._loop.stop()
