from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import BatchLogprobs, Sample
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import train_settings
from openclaw_rl.train.sample_builder import SampleBuilder, splice_hint
from openclaw_rl.types import FinishReason, JudgedTurn, Policy, Sampling, Span

Judged = Callable[..., JudgedTurn]


def only(method: str, builder: SampleBuilder) -> SampleBuilder:
    return replace(builder, signal=make_method(train_settings({"method": method})))


def made(builder: SampleBuilder, item: JudgedTurn, head: Policy) -> Sample | Reason:
    batch = builder.build_batch([item], head, range(head.version - 65, head.version + 1))
    return batch.samples[0] if batch.samples else batch.dropped[item.turn.id]


def test_a_sample_has_the_stored_tokens(
    builder: SampleBuilder, judged: Judged, head: Policy
) -> None:
    item = judged(
        score=-1, request={"agent": "hal", "sampling": Sampling(temperature=0.7), "version": 0}
    )
    sample = made(builder, item, head)
    assert isinstance(sample, Sample)
    assert (sample.turn, sample.agent, sample.temperature, sample.reward) == (
        item.turn.id,
        "hal",
        0.7,
        -1.0,
    )
    assert item.exchange.reply is not None
    np.testing.assert_array_equal(sample.prompt_ids, item.exchange.request.prompt_ids)
    np.testing.assert_array_equal(sample.response_ids, item.exchange.reply.response_ids)
    np.testing.assert_array_equal(sample.logprobs, item.exchange.reply.logprobs)


def test_the_weight_of_the_verdict_scales_the_advantage(
    builder: SampleBuilder, judged: Judged, head: Policy
) -> None:
    items = [judged(score=-1), judged(score=-1)]
    items[1] = replace(items[1], verdict=replace(items[1].verdict, weight=0.25))
    samples = [made(builder, item, head) for item in items]
    assert all(isinstance(sample, Sample) for sample in samples)
    memory = {"baseline": {"all": [0.5, 10], "agents": {}}}
    whole, part = (
        make_method(train_settings({"method": "binary"})).loss_terms(
            BatchLogprobs(samples=[s], student_logprobs=[s.logprobs], teacher_logprobs=[()]), memory
        )[0]
        for s in samples
        if isinstance(s, Sample)
    )
    assert set(whole.advantages[0]) == {-1.5}
    assert set(part.advantages[0]) == {-0.375}


def test_the_version_is_that_of_the_tokens(
    builder: SampleBuilder, judged: Judged, head: Policy
) -> None:
    """After an engine was lost, another version may have answered than the one at admission."""
    size = len(judged().exchange.reply.response_ids)  # type: ignore[union-attr]
    spans = {"spans": (Span(start=0, end=size, version=0),)}
    sample = made(builder, judged(request={"version": -65}, reply=spans), head)
    assert isinstance(sample, Sample)
    assert sample.version == 0
    stale = {"spans": (Span(start=0, end=size, version=-65),)}
    assert "answered by version -65" in str(made(builder, judged(reply=stale), head))


def test_hints_are_in_the_last_user_message(
    builder: SampleBuilder, judged: Judged, head: Policy, renderer: Renderer
) -> None:
    messages = [
        {"role": "user", "content": "Where is the Louvre?"},
        {"role": "user", "content": "<system-reminder>passing</system-reminder>"},
    ]
    prompt = renderer.render(messages).prompt_ids
    item = judged(
        hints=("Be short.", "Be kind."), request={"messages": messages, "prompt_ids": prompt}
    )
    sample = made(builder, item, head)
    assert isinstance(sample, Sample)
    for ids, hint in zip(sample.hinted_prompts, ("Be short.", "Be kind."), strict=True):
        hinted = [
            {"role": "user", "content": f"Where is the Louvre?\n\n[Hint: {hint}]"},
            messages[1],
        ]
        np.testing.assert_array_equal(ids, renderer.render(hinted).prompt_ids)


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"request": {"identity": "x" * 64}}, "its tokens belong to another model"),
        (
            {"request": {"version": -65}, "reply": {"spans": ()}},
            "too stale: answered by version -65, 65 versions ago",
        ),
        ({"request": {"sampling": Sampling(temperature=0.0)}}, "greedy sampling"),
        ({"request": {"sampling": Sampling(top_p=0.9)}}, "top_p 0.9 cuts the distribution"),
        ({"score": 0}, "nothing that the method can use"),
        ({"score": None}, "nothing that the method can use"),
        ({"reply": {"finish_reason": FinishReason.LENGTH}}, "cut at its token limit"),
        ({"score": 0, "hints": ("x " * 9000,)}, "no hint could be put into the prompt"),
        (
            {"score": 0, "hints": ("x",), "request": {"messages": []}},
            "no hint could be put into the prompt",
        ),
    ],
)
def test_untrainable_turns_have_a_reason(
    builder: SampleBuilder, judged: Judged, head: Policy, keywords: dict[str, Any], reason: str
) -> None:
    sample = made(builder, judged(**keywords), head)
    assert isinstance(sample, Reason)
    assert reason in sample.detail


def test_broken_recordings_drop_only_their_turn(
    builder: SampleBuilder, judged: Judged, head: Policy
) -> None:
    item = judged()
    assert item.exchange.reply is not None
    n = len(item.exchange.reply.response_ids)
    broken = {"logprobs": np.full(n, np.nan, np.float32)}
    assert "not all finite" in str(made(builder, judged(reply=broken), head))
    assert made(builder, judged(reply={"mask": np.zeros(n, bool)}), head) == Reason(
        ReasonCode.NO_TOKEN, "no token of the reply may train"
    )


def test_truncated_replies_keep_their_hints(
    builder: SampleBuilder, judged: Judged, head: Policy
) -> None:
    item = judged(score=-1, hints=("Be short.",), reply={"finish_reason": FinishReason.LENGTH})
    sample = made(builder, item, head)
    assert isinstance(sample, Sample)
    assert sample.reward is None
    assert len(sample.hinted_prompts) == 1


def test_samples_have_only_the_signals_that_the_method_uses(
    builder: SampleBuilder, judged: Judged, head: Policy
) -> None:
    item = judged(score=1, hints=("Be short.",))
    binary, opd = made(only("binary", builder), item, head), made(only("opd", builder), item, head)
    assert isinstance(binary, Sample)
    assert isinstance(opd, Sample)
    assert (binary.reward, binary.hinted_prompts) == (1.0, ())
    assert (opd.reward, len(opd.hinted_prompts)) == (None, 1)


IDS = st.lists(st.integers(0, 3), max_size=8).map(lambda x: np.array(x, np.int32))


@settings(max_examples=200, deadline=None)
@given(history=IDS, other=IDS, cut=IDS, new=IDS, tail=IDS)
def test_a_hint_is_carried_over_into_the_stored_prompt(
    history: np.ndarray, other: np.ndarray, cut: np.ndarray, new: np.ndarray, tail: np.ndarray
) -> None:
    """The stored prompt has another history in front of the same question."""
    mark = np.array([9], np.int32)  # where history ends and the question begins
    plain = np.concatenate([history, mark, cut, tail])
    hinted = np.concatenate([history, mark, cut, new, tail])
    stored = np.concatenate([other, mark, cut, tail])
    np.testing.assert_array_equal(
        splice_hint(stored, plain, hinted), np.concatenate([other, mark, cut, new, tail])
    )
    np.testing.assert_array_equal(splice_hint(plain, plain, hinted), hinted)


@settings(max_examples=200, deadline=None)
@given(history=IDS, cut=IDS, new=IDS, tail=IDS, loop=IDS, kept=IDS)
def test_a_hint_is_carried_over_in_front_of_what_the_client_dropped(
    history: np.ndarray,
    cut: np.ndarray,
    new: np.ndarray,
    tail: np.ndarray,
    loop: np.ndarray,
    kept: np.ndarray,
) -> None:
    """A tool loop after the question, whose reasoning is in the stored prompt and in no rendering."""
    mark, end = np.array([9], np.int32), np.array([8, 7], np.int32)
    plain = np.concatenate([history, mark, cut, end, loop, tail])
    hinted = np.concatenate([history, mark, cut, new, end, loop, tail])
    stored = np.concatenate([history, mark, cut, end, np.array([5, 5], np.int32), kept, loop, tail])
    expected = np.concatenate(
        [history, mark, cut, new, end, np.array([5, 5], np.int32), kept, loop, tail]
    )
    np.testing.assert_array_equal(splice_hint(stored, plain, hinted), expected)


def test_a_prompt_that_differs_at_both_ends_is_rendered_again() -> None:
    plain, hinted, stored = (np.array(x, np.int32) for x in ([1, 2, 3], [1, 9, 2, 3], [5, 2, 4]))
    np.testing.assert_array_equal(splice_hint(stored, plain, hinted), hinted)


def test_a_hinted_prompt_has_the_variables_of_the_plain_one(
    builder: SampleBuilder, judged: Judged, head: Policy, renderer: Renderer, tmp_path: Path
) -> None:
    """A template that says something else when the client asks it to: the teacher must see the same."""
    folder = tmp_path / "model"
    shutil.copytree(renderer.files.folder, folder)
    template = folder / "chat_template.jinja"
    template.write_text("{% if tone %}{{ tone }}{% endif %}" + template.read_text())
    toned = Renderer(ModelFiles.from_path(str(folder)))
    messages = [{"role": "user", "content": "Where is the Louvre?"}]
    prompt = toned.render(messages, variables={"tone": "Sing. "}).prompt_ids
    item = judged(
        hints=("Be short.",),
        request={"messages": messages, "prompt_ids": prompt, "template": {"tone": "Sing. "}},
    )
    sample = made(replace(builder, renderer=toned), item, head)
    assert isinstance(sample, Sample)
    words = toned.tokenizer.backend.decode(
        sample.hinted_prompts[0].tolist(), skip_special_tokens=False
    )
    assert words.startswith("Sing. ")
    assert "[Hint: Be short.]" in words


def with_lesson(judged: Judged, renderer: Renderer, **changes: Any) -> JudgedTurn:
    """A turn that was sampled with a lesson in its prompt; the stored messages are without it."""
    told = [
        {"role": "user", "content": "Where is the Louvre?\n\n[Hint: Keep answers short. Be kind.]"}
    ]
    lessons = {"aa": "Keep answers short.", "bb": "Be kind."}
    return judged(
        request={"lessons": lessons, "prompt_ids": renderer.render(told).prompt_ids}, **changes
    )


def all_of(builder: SampleBuilder, item: JudgedTurn, head: Policy) -> list[Sample]:
    return builder.build_batch([item], head, range(head.version - 65, head.version + 1)).samples


def test_a_turn_with_a_lesson_trains_the_prompt_as_sampled_by_its_score_and_the_plain_one_by_its_hint(
    builder: SampleBuilder, judged: Judged, head: Policy, renderer: Renderer
) -> None:
    item = with_lesson(judged, renderer, score=-1, hints=("Use a formal tone.",))
    scored, plain = all_of(builder, item, head)
    np.testing.assert_array_equal(scored.prompt_ids, item.exchange.request.prompt_ids)
    assert (scored.reward, scored.hinted_prompts, scored.on_policy, scored.from_teacher) == (
        -1.0,
        (),
        True,
        False,
    )
    messages = item.exchange.request.messages
    np.testing.assert_array_equal(plain.prompt_ids, renderer.render(messages).prompt_ids)
    hinted = [{"role": "user", "content": "Where is the Louvre?\n\n[Hint: Use a formal tone.]"}]
    np.testing.assert_array_equal(plain.hinted_prompts[0], renderer.render(hinted).prompt_ids)
    assert (plain.reward, plain.on_policy, plain.from_teacher) == (None, False, True)
    assert [
        len(all_of(only(method, builder), item, head)) for method in ("binary", "opd", "sdft")
    ] == [1, 1, 1]


def test_a_reply_that_was_liked_teaches_the_plain_prompt_the_lessons_it_was_sampled_with(
    builder: SampleBuilder, judged: Judged, head: Policy, renderer: Renderer
) -> None:
    item = with_lesson(judged, renderer, score=1)
    scored, plain = all_of(builder, item, head)
    assert scored.reward == 1.0
    np.testing.assert_array_equal(plain.hinted_prompts[0], item.exchange.request.prompt_ids)
    np.testing.assert_array_equal(
        plain.prompt_ids, renderer.render(item.exchange.request.messages).prompt_ids
    )
    (alone,) = all_of(only("binary", builder), item, head)
    np.testing.assert_array_equal(alone.prompt_ids, item.exchange.request.prompt_ids)


def test_a_history_in_tokens_of_its_own_is_kept_when_a_lesson_is_taken_out(
    builder: SampleBuilder, judged: Judged, head: Policy, renderer: Renderer
) -> None:
    messages = [
        {"role": "user", "content": "Where is the Louvre?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And the Prado?"},
    ]
    told = [
        *messages[:2],
        {"role": "user", "content": "And the Prado?\n\n[Hint: Keep answers short.]"},
    ]
    split = renderer.tokenizer.encode("Par").tolist() + renderer.tokenizer.encode("is.").tolist()
    whole = renderer.tokenizer.encode("Paris.").tolist()
    assert split != whole

    def with_split(conversation: list[dict[str, str]]) -> list[int]:
        ids = renderer.render(conversation).prompt_ids.tolist()
        at = next(i for i in range(len(ids)) if ids[i : i + len(whole)] == whole)
        return [*ids[:at], *split, *ids[at + len(whole) :]]

    request = {
        "messages": messages,
        "prompt_ids": np.array(with_split(told), np.int32),
        "lessons": {"a": "Keep answers short."},
    }
    plain = all_of(only("opd", builder), judged(score=1, hints=("x",), request=request), head)[0]
    assert plain.prompt_ids.tolist() == with_split(messages)
