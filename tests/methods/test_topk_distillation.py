"""Distillation over the likeliest tokens: which tokens, which hint, and on which samples; against the reference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.methods.hint_selection import choose_hints, mix_teachers, overlap_share
from openclaw_rl.methods.opd import OpdMethod
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.topk_distillation import TopKDistillation
from openclaw_rl.methods.types import BatchLogprobs, DistillTerm, Sample, TopKLogprobs, TopKScores
from openclaw_rl.settings.load import train_settings

V, N = 12, 4


def draw(rng: np.random.Generator, hints: int, n: int = 0) -> Sample:
    r = int(rng.integers(1, 9))
    mask = rng.random(r) < 0.7
    mask[rng.integers(r)] = True
    prompt = rng.integers(0, V, 3).astype(np.int32)
    return Sample(
        turn=f"turn-{n}",
        agent="a",
        prompt_ids=prompt,
        response_ids=rng.integers(0, V, r).astype(np.int32),
        logprobs=np.zeros(r, np.float32),
        mask=mask,
        temperature=1.0,
        version=0,
        reward=rng.choice([1.0, None]),
        hinted_prompts=(prompt,) * hints,
    )


def likeliest(logps_RV: np.ndarray, n: int = N) -> TopKLogprobs:
    ids = np.argsort(-logps_RV, axis=1)[:, :n]
    return TopKLogprobs(ids=ids.astype(np.int32), logprobs=np.take_along_axis(logps_RV, ids, 1))


def evidence(
    rng: np.random.Generator, samples: list[Sample]
) -> tuple[BatchLogprobs, list[list[np.ndarray]]]:
    """And each hint's whole distributions [R, V]."""

    def distribution(r: int) -> np.ndarray:
        logits = rng.normal(0, 2, (r, V))
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def own(s: Sample, logps_RV: np.ndarray) -> np.ndarray:
        return np.take_along_axis(logps_RV, s.response_ids[:, None].astype(int), 1)[:, 0].astype(
            np.float32
        )

    student = [distribution(len(s.mask)) for s in samples]
    teachers = [[distribution(len(s.mask)) for _ in s.hinted_prompts] for s in samples]
    tops = [
        TopKScores(
            student=likeliest(o),
            teachers=tuple(likeliest(t) for t in of),
            teacher_on_student_topk=tuple(
                np.take_along_axis(t, likeliest(o).ids.astype(int), 1) for t in of
            ),
        )
        for o, of in zip(student, teachers, strict=True)
    ]
    found = BatchLogprobs(
        samples=samples,
        student_logprobs=[own(s, o) for s, o in zip(samples, student, strict=True)],
        teacher_logprobs=[[own(s, t) for t in of] for s, of in zip(samples, teachers, strict=True)],
        topk_scores=tops,
    )
    return found, teachers


def topk(of: Any = "student", hint_choice: Any = "overlap") -> TopKDistillation:
    return TopKDistillation(
        name="x", of=of, top=N, divergence="reverse", cap=2.0, hint_choice=hint_choice
    )


def chosen_by(reference: ModuleType, s: Sample, tops: TopKScores) -> int:
    hint: int = reference.closest_hint(
        tops.student.ids.tolist(), [t.ids.tolist() for t in tops.teachers], s.mask
    )
    return hint


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_target_is_the_teacher_of_the_closest_hint(reference: ModuleType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = [draw(rng, int(rng.integers(0, 4)), n) for n in range(int(rng.integers(1, 6)))]
    found, teachers = evidence(rng, samples)
    for of in ("student", "teacher"):
        (target,) = topk(of).loss_terms(found, {})
        assert target.sample_count == sum(bool(s.hinted_prompts) for s in samples)
        for i, s in enumerate(samples):
            support = target.targets[i]
            if not s.hinted_prompts:
                assert support is None
                assert not target.masks[i].any()
                continue
            assert support is not None
            np.testing.assert_array_equal(target.masks[i], s.mask)
            hint = chosen_by(reference, s, found.topk_scores[i])
            wanted = (
                found.topk_scores[i].student.ids
                if of == "student"
                else found.topk_scores[i].teachers[hint].ids
            )
            np.testing.assert_array_equal(support.ids, wanted)
            theirs = np.take_along_axis(teachers[i][hint], wanted.astype(int), 1)
            np.testing.assert_allclose(support.logprobs, theirs, rtol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_metrics_are_means_over_the_tokens_of_all_hinted_samples(
    reference: ModuleType, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    samples = [draw(rng, int(rng.integers(1, 4)), n) for n in range(3)] + [draw(rng, 0)]
    found, _ = evidence(rng, samples)
    shares, students, teachers = [], [], []
    for s, tops in zip(samples[:3], found.topk_scores, strict=False):
        hint = chosen_by(reference, s, tops)
        for t in np.flatnonzero(s.mask):
            shares.append(
                reference.common(tops.student.ids[t].tolist(), tops.teachers[hint].ids[t].tolist())
            )
            students.append(1 - np.exp(tops.student.logprobs[t]).sum())
            teachers.append(1 - np.exp(tops.teachers[hint].logprobs[t]).sum())
    for of, tails in (("student", students), ("teacher", teachers)):
        (target,) = topk(of).loss_terms(found, {})
        assert target.metrics == {
            "overlap": pytest.approx(np.mean(shares)),
            "tail": pytest.approx(np.mean(tails), abs=1e-9),
        }


def test_a_mixture_is_a_distribution_over_the_students_tokens() -> None:
    rng = np.random.default_rng(0)
    samples = [draw(rng, 3)]
    found, teachers = evidence(rng, samples)
    (target,) = topk(hint_choice="mixture").loss_terms(found, {})
    support = target.targets[0]
    assert support is not None
    even = np.log(np.mean(np.exp(teachers[0]), axis=0))
    np.testing.assert_allclose(
        support.logprobs, np.take_along_axis(even, support.ids.astype(int), 1), rtol=1e-9
    )
    with pytest.raises(ValueError, match="each hinted teacher has likeliest tokens of its own"):
        topk("teacher", "mixture")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_target_has_one_token_of_the_closest_hint(reference: ModuleType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = [draw(rng, int(rng.integers(0, 4)), n) for n in range(4)]
    found, _ = evidence(rng, samples)
    (term,) = OpdMethod(clip=0.8, hint_choice="overlap", top=N).loss_terms(found, {})
    for i, s in enumerate(samples):
        assert term.masks[i].any() == bool(s.hinted_prompts)
        if s.hinted_prompts:
            teacher = found.teacher_logprobs[i][chosen_by(reference, s, found.topk_scores[i])]
            for t in range(len(s.mask)):
                wanted = reference.opd_advantage(
                    float(found.student_logprobs[i][t]), [float(teacher[t])], 0.8
                )
                assert term.advantages[i][t] == pytest.approx(wanted, abs=1e-5)
    assert ("overlap" in term.metrics) == any(s.hinted_prompts for s in samples)


def test_a_teacher_that_agrees_gives_no_gradient() -> None:
    rng = np.random.default_rng(1)
    samples = [draw(rng, 1), draw(rng, 0)]
    found, _ = evidence(rng, samples)
    assert topk().loss_terms(found, {})[0].has_gradient
    agreed = BatchLogprobs(
        samples=samples,
        student_logprobs=found.student_logprobs,
        teacher_logprobs=[[found.student_logprobs[0]], []],
        topk_scores=found.topk_scores,
    )
    assert not topk().loss_terms(agreed, {})[0].has_gradient


def test_samples_without_hints_are_in_no_term() -> None:
    rng = np.random.default_rng(1)
    found, _ = evidence(rng, [draw(rng, 0), draw(rng, 0)])
    (target,) = topk().loss_terms(found, {})
    assert (target.sample_count, target.has_gradient, target.metrics) == (0, False, {})


def test_the_first_of_equal_overlaps_is_chosen() -> None:
    """0.3 + 0.3 + 0 is less than 0.1 + 0.2 + 0.3 to a computer; six tokens of thirty are in common both times."""

    def support(common: tuple[int, ...]) -> TopKLogprobs:
        ids_RN = np.stack([np.arange(10, dtype=np.int32) + 10 - n for n in common])
        return TopKLogprobs(ids=ids_RN, logprobs=np.full(ids_RN.shape, -3.0))

    teachers = (support((3, 3, 0)), support((1, 2, 3)))
    tops = TopKScores(student=support((10, 10, 10)), teachers=teachers, teacher_on_student_topk=())
    assert [overlap_share(tops.student.ids, t.ids).round(9).tolist() for t in teachers] == [
        [0.3, 0.3, 0.0],
        [0.1, 0.2, 0.3],
    ]
    assert choose_hints(tops, np.ones(3, bool), "overlap") == [0]


def test_overlap_and_mixture_match_a_computation_by_hand() -> None:
    a, b = np.array([[1, 2, 3, 4], [1, 2, 3, 4]]), np.array([[4, 9, 1, 7], [5, 6, 7, 8]])
    assert overlap_share(a, b).tolist() == [0.5, 0.0]
    assert mix_teachers([np.log([0.2]), np.log([0.6])]) == pytest.approx(np.log([0.4]))


def test_likeliest_tokens_that_do_not_fit_the_reply_are_refused() -> None:
    rng = np.random.default_rng(2)
    samples = [draw(rng, 1, 7)]
    found, _ = evidence(rng, samples)
    other = TopKLogprobs(ids=np.zeros((99, N), np.int32), logprobs=np.zeros((99, N)))
    wrong = TopKScores(student=other, teachers=(other,), teacher_on_student_topk=(other.logprobs,))
    broken = BatchLogprobs(
        samples=samples,
        student_logprobs=found.student_logprobs,
        teacher_logprobs=found.teacher_logprobs,
        topk_scores=[wrong],
    )
    with pytest.raises(
        ValueError, match=r"turn-7: expected likeliest tokens at \d positions, got \[99, 99\]"
    ):
        topk().loss_terms(broken, {})
    with pytest.raises(
        ValueError, match=r"expected ids and log-probabilities \[R, N\], got \(2, 3\), \(2, 4\)"
    ):
        TopKLogprobs(ids=np.zeros((2, 3), np.int32), logprobs=np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("name", "by", "of", "term"),
    [
        ("sdpo", "token", "student", "sdpo"),
        ("sdft", "token", "teacher", "sdft"),
        ("opd", "student_topk", "student", "opd"),
        ("combine", "teacher_topk", "teacher", "opd"),
        ("combine", "token", None, "opd"),
    ],
)
def test_methods_are_found_by_name(name: str, by: Any, of: str | None, term: str) -> None:
    rng = np.random.default_rng(3)
    samples = [draw(rng, 2)]
    found, _ = evidence(rng, samples)
    options = {"target": by, "topk": N, "divergence": "jsd", "ratio_clip": 3.0}
    settings = {"method": name, "loss.w_opd": 2.0} | {
        f"distill.{key}": value for key, value in options.items()
    }
    made = make_method(train_settings(settings))
    last = made.loss_terms(found, {})[-1]
    assert made.uses_hints
    assert made.topk_size == (N if of else 0)
    assert (last.name, last.weight) == (term, 2.0 if name == "combine" else 1.0)
    assert isinstance(last, DistillTerm) == (of is not None)
    if isinstance(last, DistillTerm):
        tops = found.topk_scores[0]
        owned = [tops.student.ids] if of == "student" else [t.ids for t in tops.teachers]
        assert last.targets[0] is not None
        assert any(np.array_equal(last.targets[0].ids, ids) for ids in owned)
        assert (last.divergence, last.ratio_clip) == ("jsd", 3.0)
    assert made.update_state(samples, {"kept": 1})["kept"] == 1
