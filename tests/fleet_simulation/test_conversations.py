"""Tests of the simulated conversations."""

from fleet_simulation.conversations import SHARED, UNSHARED, conversations


def test_a_seed_gives_the_same_conversations_and_another_seed_others() -> None:
    def first(seed: int) -> tuple[float, tuple[int, ...]]:
        conversation = next(conversations(SHARED, seed))
        return conversation.starts_at, conversation.next_prompt()[0]

    assert first(1) == first(1) != first(2)


def test_conversations_share_system_prompts_and_grow_by_messages() -> None:
    sessions = list(conversations(SHARED, 0))
    assert len({tuple(session.token_ids) for session in sessions}) <= SHARED.system_prompts
    assert [session.starts_at for session in sessions] == sorted(session.starts_at for session in sessions)
    system, (prompt, _) = tuple(sessions[0].token_ids), sessions[0].next_prompt()
    following, length = sessions[0].next_prompt()
    assert prompt[: len(system)] == system and following[: len(prompt)] == prompt != following
    assert SHARED.answer_tokens // 2 <= length <= SHARED.answer_tokens * 3 // 2


def test_unshared_prompts_have_nothing_in_common() -> None:
    prompts = [session.next_prompt()[0] for session in conversations(UNSHARED, 0)]
    assert len({prompt[:8] for prompt in prompts}) == len(prompts) == UNSHARED.sessions
