"""A hint is about behaviour: one that holds the answer itself is dropped, and the score stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web
from tests.growth import check_linear_growth
from tests.judge.endpoint import completion, serving, vote

from openclaw_rl.judge.leak_check import LeakCheck
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.teacher import Teacher
from openclaw_rl.settings.load import from_flat
from openclaw_rl.types import Feedback, JudgeInput, Reaction, Verdict

ASKED = "What is the capital of Australia, and what is 17 * 23? My file is notes.txt. Write at least 3 lines."
CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "read_file", "arguments": '{"path": "a.py"}'},
}
REPLY = {"role": "assistant", "content": "Sydney, and 381.", "tool_calls": [CALL]}
SAID = (
    'No, it is Canberra, and 17 * 23 is 391. Use at most 50 words, call run_tests() in /srv/app, say "good morning", '
    "answer in French, and tell me that the seat of the government was moved there from another city long ago."
)


def turn(said: str = SAID, asked: str = ASKED, comment: str | None = None) -> JudgeInput:
    given = (
        (Feedback(id="f", scope="s", target="t", comment=comment, given_at=1.0),) if comment else ()
    )
    told = ({"role": "user", "content": said},)
    reaction = Reaction(
        turn="t", revision=1, messages=told, feedback=given, source="u", how="exact", at=1.0
    )
    return JudgeInput(
        turn="t", messages=({"role": "user", "content": asked},), reply=REPLY, reaction=reaction
    )


def leak(hint: str, item: JudgeInput | None = None) -> str | None:
    return LeakCheck(item or turn(), lambda message: False).find_leak(hint)


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        ("Say that the product is 391.", "a number"),
        ("Say that the product is not 381.", "a number"),
        ("Name Canberra as the capital.", "a name"),
        ("Call run_tests() before you answer.", "code"),
        ("Look into /srv/app first.", "code"),
        ("Begin with `/srv/app`.", "code"),
        ('Greet with "good morning" first.', "a quotation"),
        (
            "tell me that the seat of the government was moved there from another city",
            "a run of words",
        ),
    ],
)
def test_a_hint_with_later_content_leaks(hint: str, kind: str) -> None:
    assert leak(hint) == kind


@pytest.mark.parametrize(
    "hint",
    [
        "Keep answers short.",
        "Answer in at most 50 words.",
        "Check the product of 17 and 23 before you answer.",
        "Answer in French.",
        "Use read_file before you answer.",
        "Read notes.txt first.",
        "Write at least 3 lines about Australia.",
        "Verify facts about capitals; do not guess.",
        "Tell the user where the seat of the government is.",
        "Be polite, e.g. greet first.",
    ],
)
def test_a_hint_about_behaviour_does_not(hint: str) -> None:
    assert leak(hint) is None


@pytest.mark.parametrize(
    ("said", "hint", "kind"),
    [
        ("Nein, es ist Canberra, nicht 381 sondern 391.", "Nenne als Ergebnis 391.", "a number"),
        ("Bitte in Stichpunkten.", "Antworte dem Nutzer bitte in Stichpunkten.", None),
        ("Höchstens 50 Wörter bitte.", "Antworte mit höchstens 50 Wörtern.", None),
        ("不对，答案是391。", "说明答案是391。", "a number"),
        ("太长了，最多50字。", "回答最多50字。", None),
        ("いいえ、正解は「さくら」です。", "「さくら」と答えてください。", "a quotation"),
        ("No, son 391.", "Di que son 391.", "a number"),
        ("Au plus 50 mots.", "Réponds en 50 mots au plus.", None),
    ],
)
def test_leaks_are_found_in_other_languages(said: str, hint: str, kind: str | None) -> None:
    assert leak(hint, turn(said)) == kind


def test_a_comment_is_read_and_the_conversation_is_known() -> None:
    assert leak("Say 42.", turn("hm", comment="it is 42")) == "a number"
    assert leak("Say 391.", turn(asked="Is it 391?")) is None
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    seen = replace(turn("no, a.py"), messages=(called,))
    assert (
        leak("Look into a.py first.", seen),
        leak("Look into app.py first.", turn("no, app.py")),
    ) == (None, "code")
    assert leak("Say 39.") is None


@pytest.mark.parametrize("words", ["_", "a_", "1/", "1.1 ", "a b ", "`a` ", "/a", "字"])
def test_a_search_takes_linear_time(words: str) -> None:
    """The reaction has a million characters, and the hint as many as a teacher's may have."""

    def check_of(size: int) -> LeakCheck:
        return LeakCheck(turn("_a 1/1 " * (size // 7)), lambda message: False)

    def hint(size: int) -> str:
        return words * (size // len(words))

    check_linear_growth(check_of(1_000_000).find_leak, hint, 1200)
    check_linear_growth(lambda check: check.find_leak(hint(1200)), check_of, 1_000_000)


def test_a_leaking_hint_of_the_judge_is_dropped_with_the_reason_and_the_score_stays() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion(vote(-1, "Say 391." if number < 3 else "Check your sums."))

    async def go() -> Verdict:
        async with serving(answer) as endpoint:
            flat = {"judge.base_url": f"http://127.0.0.1:{endpoint.port}/v1", "judge.model": "m"}
            judge = LlmJudge(from_flat(flat))
            try:
                return await judge.judge(turn())
            finally:
                await judge.close()

    verdict = asyncio.run(go())
    assert (verdict.score, verdict.hints) == (-1, ("Check your sums.",))
    assert verdict.reason.endswith("2 of 3 hints dropped: they give the answer away")
    assert sorted(v.reason for v in verdict.votes) == [
        "r",
        *["r [hint dropped: it gives away a number]"] * 2,
    ]
    assert "391" not in str([(vote.hint, vote.reason) for vote in verdict.votes])
    assert [vote.fact for vote in verdict.votes].count("Say 391.") == 2, (
        "kept for a lesson about this question alone"
    )


def test_a_leaking_hint_of_the_teacher_leaves_the_hints_of_the_judge() -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion('{"hint": "Say that it is Canberra."}')

    async def go() -> Verdict:
        async with serving(answer) as endpoint:
            flat = {
                "teacher.base_url": f"http://127.0.0.1:{endpoint.port}/v1",
                "teacher.model": "m",
            }
            teacher = Teacher(from_flat(flat))
            bad = Verdict(
                turn="t", revision=1, judge="rules@1", score=-1, hints=("Be brief.",), at=1.0
            )
            try:
                return await teacher.add_hint(turn(), bad)
            finally:
                await teacher.close()
                assert (teacher.hints, teacher.missed) == (0, 1)

    verdict = asyncio.run(go())
    assert (verdict.score, verdict.hints) == (-1, ("Be brief.",))
    assert "dropped: it gives away a name" in verdict.reason
