"""The questions of rehearsal measure nothing, because they are trained on."""

from __future__ import annotations

from benchmarks.demo.everyday_person import asked_prompts, closed_questions, held_out_prompts

from openclaw_rl.evals.toy_world import all_facts, questions_about
from openclaw_rl.examination.probe_set import load_lesson_probes, load_probes
from openclaw_rl.practice.rehearsal import rehearsal_questions


def test_no_question_of_rehearsal_is_measured_anywhere() -> None:
    measured = {
        *(closed.question for closed in closed_questions()),
        *held_out_prompts(),
        *asked_prompts(),
        *(probe.question for probe in [*load_probes(None), *load_lesson_probes()]),
        *(question.text for fact in all_facts() for question in questions_about(fact)),
    }
    assert measured.intersection(rehearsal_questions()) == set()


def test_each_rehearsal_question_occurs_once() -> None:
    questions = rehearsal_questions()
    assert len(set(questions)) == len(questions) > 100
