"""SchedulerState and CacheState: plain values for admin pages: what waits, what runs, which blocks are used."""

from typing import NotRequired, TypedDict


class SequenceSnapshot(TypedDict):
    """One open choice of a request, without its tokens; for people and admin pages.

    `age_seconds` counts from its arrival at the engine. `wait_reason` is "" unless it waits. Drafts are guessed tokens.
    """

    request_id: str
    choice: int
    state: str
    wait_reason: str
    age_seconds: float
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    cached_tokens: int
    preemptions: int
    confirmed_drafts: int
    rejected_drafts: int


class ChoiceSnapshot(TypedDict):
    """State of one open choice; `wait_reason` is "" unless it waits."""

    choice: int
    state: str
    wait_reason: str


class SchedulerState(TypedDict):
    """Waiting requests, in order, and their reasons; for people and admin pages.

    `states` has the first open choice of each request, and `choices` all of those that have several. `sequences` has
    the running choices first, and MAX_SEQUENCES of them all at most.
    """

    waiting_requests: int
    active_requests: int
    waiting_order: list[str]
    wait_reasons: dict[str, str]
    states: dict[str, str]
    choices: dict[str, list[ChoiceSnapshot]]
    sequences: list[SequenceSnapshot]
    in_flight: int
    max_in_flight: int
    steps: int
    preemptions: int
    failed_steps: int
    finished_by_reason: dict[str, int]


class StateCheckpointState(TypedDict):
    """Counts of the saved states of layers; free + cached + held == total. The others are totals since the start."""

    total: int
    free: int
    cached: int
    held: int
    hits: int
    saves: int
    skipped_saves: int
    evictions: int


class CacheState(TypedDict):
    """Block counts of the pool; free + cached + allocated == total.

    `state_checkpoints` exists only where layers of the model keep a state.
    """

    total_blocks: int
    free_blocks: int
    cached_blocks: int
    allocated_blocks: int
    block_size: int
    memory_utilization: float
    window_blocks_freed: int
    state_checkpoints: NotRequired[StateCheckpointState]
