"""Conversations on a hybrid: every turn computes only what is new, also where the template drops old reasoning."""

from dataclasses import dataclass, field, replace

from chairlift.engine.runner.fake_model import FakeConfig
from support_engine import EngineHarness, make_request
from support_shares import for_each

FAKE = FakeConfig(
    vocab_size=405, max_model_len=4096, num_blocks=800, block_size=16, has_state=True, num_state_checkpoints=24
)

BEGIN_USER, BEGIN_ASSISTANT, END = 401, 402, 403


@dataclass
class Conversation:
    """The messages of a conversation, rendered as a template does that drops the reasoning of earlier answers."""

    drops_reasoning: bool
    system: list[int]
    turns: list[tuple[list[int], list[int]]] = field(default_factory=list)  # user's message, whole answer

    def prompt(self, message: list[int]) -> tuple[list[int], tuple[int, ...]]:
        """Return the prompt of the next turn, and the positions at which a later prompt may differ from it."""
        tokens, boundaries = [*self.system], []
        for user, answer in self.turns:
            boundaries.append(len(tokens))
            visible = answer[len(answer) // 2 :] if self.drops_reasoning else answer
            tokens += [BEGIN_USER, *user, END, BEGIN_ASSISTANT, *visible, END]
        boundaries.append(len(tokens))
        tokens += [BEGIN_USER, *message, END, BEGIN_ASSISTANT]
        return tokens, (*boundaries, len(tokens))


def talk(harness: EngineHarness, conversation: Conversation, name: str, message: list[int], outputs: int) -> int:
    """Run a turn; returns how many tokens of its prompt were computed."""
    prompt, boundaries = conversation.prompt(message)
    harness.submit(make_request(name, prompt, outputs, prefix_boundaries=boundaries))
    harness.drain()
    conversation.turns.append((message, harness.tokens[name]))
    usage = harness.finals[name].usage
    assert usage is not None
    return len(prompt) - usage.cached_tokens


@for_each("overlap", [True, False])
@for_each("windows", [(None,), (None, 40), ()])
@for_each("drops_reasoning", [True, False])
def test_each_of_ten_turns_computes_only_what_is_new(
    drops_reasoning: bool, windows: tuple[int | None, ...], overlap: bool
) -> None:
    harness = EngineHarness(replace(FAKE, windows=windows), overlap=overlap, max_batch_tokens=256)
    conversation = Conversation(drops_reasoning, list(range(1, 301)))
    for turn in range(10):
        message = [300 + turn] * (20 + turn)
        computed = talk(harness, conversation, f"turn {turn}", message, 90)
        if not turn:
            assert computed == len(harness.requests["turn 0"].prompt_token_ids)
            continue
        # The message with its marks, and of the answer before what differs from the tokens that were computed.
        new = len(message) + 3 + (45 + 1 if drops_reasoning else 1 + 1)
        assert computed < new + FAKE.block_size, f"turn {turn}"
    harness.check_outputs(no_faults=True)
    harness.close()


def test_conversations_in_turn_keep_their_states_in_a_pool_with_room_for_some_of_each() -> None:
    """Four conversations need about four checkpoints each; the least recently used ones are evicted."""
    harness = EngineHarness(FAKE)
    conversations = [Conversation(True, [10 * number + 1] * 100) for number in range(4)]
    for turn in range(5):
        for number, conversation in enumerate(conversations):
            message = [300 + turn] * 20
            computed = talk(harness, conversation, f"{number} {turn}", message, 90)
            assert not turn or computed < 20 + 3 + 46 + FAKE.block_size
    pool = harness.cache.checkpoints
    assert pool.num_evictions > 0 and pool.counts().held == 0
    harness.close()


def test_without_boundaries_a_turn_computes_at_most_the_turns_since_the_one_before_the_last() -> None:
    """The state behind the shared part is saved when the second prompt shares it, so one turn later."""
    harness = EngineHarness(FAKE)
    conversation, counts = Conversation(True, list(range(1, 301))), []
    for turn in range(8):
        prompt, _ = conversation.prompt([300 + turn] * 20)
        harness.submit(make_request(f"{turn}", prompt, 90))
        harness.drain()
        conversation.turns.append(([300 + turn] * 20, harness.tokens[f"{turn}"]))
        usage = harness.finals[f"{turn}"].usage
        assert usage is not None
        counts.append(len(prompt) - usage.cached_tokens)
    assert max(counts[2:]) <= 2 * (20 + 3 + 46) + FAKE.block_size
    harness.close()


def test_a_hybrid_without_checkpoints_computes_every_prompt() -> None:
    harness = EngineHarness(replace(FAKE, num_state_checkpoints=0))
    conversation = Conversation(False, list(range(1, 101)))
    for turn in range(3):
        computed = talk(harness, conversation, f"turn {turn}", [300 + turn] * 20, 30)
        assert computed == len(harness.requests[f"turn {turn}"].prompt_token_ids)
    harness.close()
