"""ConversationSource, conversations: equal for equal seeds, shared prompts that grow by turns, cache pressure."""

from dataclasses import replace

import pytest

from chairlift.bench.fleet_simulation.load.conversations import SHARED, UNSHARED, ConversationSource, conversations


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


def test_the_working_set_is_the_system_prompts_and_the_contexts_between_two_turns() -> None:
    load = replace(SHARED, turns=3, system_prompts=2, system_tokens=100, user_tokens=8, answer_tokens=2)
    waiting = load.sessions_per_second * load.think_seconds  # sessions between two of their turns
    assert load.working_set_tokens == pytest.approx(2 * 100 + waiting * 10 + waiting * 20)
    assert UNSHARED.working_set_tokens == 0


def test_cache_pressure_changes_what_is_repeated_and_not_the_rate() -> None:
    load = SHARED.with_cache_pressure(3.0, 64_000)
    assert load.working_set_tokens == pytest.approx(3 * 64_000, rel=0.01)
    assert load == replace(SHARED, system_prompts=load.system_prompts, think_seconds=load.think_seconds)
    assert SHARED.with_cache_pressure(1e-6, 64_000).system_prompts == 1
    assert UNSHARED.with_cache_pressure(3.0, 64_000) == UNSHARED


def test_a_source_sends_the_next_turn_after_the_answer_and_the_time_to_think() -> None:
    source = ConversationSource(replace(SHARED, sessions=1), 0)
    first = source.take()
    assert source.next_at == float("inf")
    first.output_token_ids += [7, 8]
    source.record_end(first, 20.0)
    assert source.next_at == 20.0 + SHARED.think_seconds
    second = source.take()
    assert list(second.prompt_token_ids[: first.prompt_tokens + 2]) == [*first.prompt_token_ids, 7, 8]
    assert first.prefix is not None and second.prefix is not None
    assert (
        second.session_key == first.session_key
        and second.prefix.hashes[: len(first.prefix.hashes)] == first.prefix.hashes
    )
