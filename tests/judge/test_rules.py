"""The rule judge: what its file says is what it does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.growth import check_linear_growth

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.rules import MAX_SEARCHED_CHARS, MAX_USER_CHARS, RulesJudge
from openclaw_rl.types import Feedback, JudgeInput, Reaction, Verdict

FILE = """\
version: 1
rules:
  - {name: thanks, when: '\\bthanks\\b', score: 1}
  - {name: start, when: '^no\\b', score: -1}
  - {name: long, when: 'too long', score: -1, hint: Keep answers short.}
  - {name: brief, when: 'shorter', hint: ' Keep  answers short '}
  - {name: tone, when: 'formal', hint: Use a formal tone.}
  - {name: crash, when: 'Traceback', who: tool, score: -1}
  - {name: done, when: 'all done', who: any, score: 1}
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> RulesJudge:
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(FILE)
    return RulesJudge.load(file)


def item(*messages: tuple[str, Any], comment: str | None = None) -> JudgeInput:
    given = (
        (Feedback(id="f", scope="s", target="t", comment=comment, given_at=1.0),) if comment else ()
    )
    said = tuple({"role": role, "content": text} for role, text in messages)
    reaction = Reaction(
        turn="t", revision=3, messages=said, feedback=given, source="u", how="exact", at=1.0
    )
    return JudgeInput(
        turn="t",
        messages=(),
        reply={"role": "assistant", "content": "no shorter Traceback"},
        reaction=reaction,
    )


def ask(judge: RulesJudge, thing: JudgeInput) -> Verdict:
    return asyncio.run(judge.judge(thing))


@pytest.mark.parametrize(
    ("messages", "score", "hints"),
    [
        ([("user", "Thanks, next")], 1, ()),
        ([("user", "THANKS")], 1, ()),
        ([("user", "no, not that")], -1, ()),
        ([("user", "[Fri 2026-11-20 18:24 UTC] No, not that")], -1, ()),
        ([("user", [{"type": "text", "text": "thanks"}])], 1, ()),
        ([("user", "thanks, but too long")], None, ("Keep answers short.",)),
        (
            [("user", "too long: shorter, more formal")],
            -1,
            ("Keep answers short.", "Use a formal tone."),
        ),
        ([("user", "more formal")], None, ("Use a formal tone.",)),
        ([("user", "Traceback")], None, ()),
        ([("tool", "ok"), ("tool", "Traceback (most recent"), ("tool", "ok")], -1, ()),
        ([("tool", "Traceback"), ("user", "thanks")], None, ()),
        ([("tool", "all done")], 1, ()),
        ([("function", "all done")], 1, ()),
        ([("system", "all done")], None, ()),
        ([("tool", "thanks")], None, ()),
        ([("user", "what is the time?")], None, ()),
        ([("tool", "x" * 3 * MAX_SEARCHED_CHARS + "\nTraceback")], -1, ()),
        ([("user", None)], None, ()),
        ([], None, ()),
    ],
)
def test_all_matching_rules_vote(
    judge: RulesJudge, messages: list[tuple[str, Any]], score: int | None, hints: tuple[str, ...]
) -> None:
    verdict = ask(judge, item(*messages))
    assert (verdict.score, verdict.hints) == (score, hints)
    assert (verdict.turn, verdict.revision, verdict.explicit) == ("t", 3, False)
    assert verdict.judge == judge.name
    assert verdict.reason.startswith("abstained") == (score is None)


def test_the_votes_name_their_rules(judge: RulesJudge) -> None:
    verdict = ask(judge, item(("user", "thanks, but too long")))
    assert [(vote.reason, vote.score) for vote in verdict.votes] == [("thanks", 1), ("long", -1)]
    assert "thanks" in verdict.reason
    assert "disagree" in verdict.reason


def test_a_comment_is_evidence(judge: RulesJudge) -> None:
    assert ask(judge, item(("user", "next"), comment="far too long")).score == -1


def test_another_file_is_another_judge(judge: RulesJudge, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(FILE.replace("score: 1", "score: -1"))
    assert RulesJudge.load(tmp_path / "r.yaml").name != judge.name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FILE.replace("version: 1", "version: 2"), "version: 1"),
        ("[]", "version: 1"),
        ("version: 1\nrules: []", "a list `rules:`"),
        ("version: 1\nrules: {}", "a list `rules:`"),
        (
            "version: 1\nparts: []\nrules: [{name: a, when: b, score: 1}]",
            "`parts`: expected a mapping",
        ),
        ("version: 1\nrule: []\nrules: [{name: a, when: b, score: 1}]", "the keys"),
        ("version: 1\nrules: [3]", "rule 1: expected a mapping"),
        ("version: 1\nrules: [{when: b, score: 1}]", "rule 1: `name`"),
        ("version: 1\nrules: [{name: a, score: 1}]", r"rule 1 \(a\): `when`: expected text"),
        (
            "version: 1\nrules: [{name: a, when: '(', score: 1}]",
            r"rule 1 \(a\): `when`: expected a regular expression",
        ),
        (
            "version: 1\nrules: [{name: a, when: 'a(?!b)', score: 1}]",
            r"rule 1 \(a\): `when`: expected a regular expression of RE2, got .*look-ahead is not supported",
        ),
        (
            "version: 1\nrules: [{name: a, when: b, score: 2}]",
            r"`score`: expected 1, -1 or nothing; got 2",
        ),
        (
            "version: 1\nrules: [{name: a, when: b, score: true}]",
            "`score`: expected 1, -1 or nothing; got True",
        ),
        (
            "version: 1\nrules: [{name: a, when: b, score: 1, who: me}]",
            "`who`: expected user, tool or any; got 'me'",
        ),
        ("version: 1\nrules: [{name: a, when: b, score: 1, hints: c}]", "unknown key 'hints'"),
        (
            "version: 1\nrules: [{name: a, when: b, unless: '(', score: 1}]",
            "`unless`: expected a regular expression",
        ),
        ("version: 1\nrules: [{name: a, when: b}]", "a `score`, a `hint` or both"),
        ("version: 1\nrules: [{name: a, when: b, hint: 3}]", "`hint`: expected text; got 3"),
        (
            "version: 1\nrules: [{name: a, when: b, score: 1}, {name: a, when: c, score: 1}]",
            "distinct names",
        ),
        ("version: [", "not valid YAML"),
        (
            "version: 1\nwhen: 3\nrules: [{name: a, when: b, score: 1}]",
            "`when`: expected text or a list",
        ),
        (
            "version: 1\nunless: '('\nrules: [{name: a, when: b, score: 1}]",
            "`unless`: expected a regular expression",
        ),
        (
            "version: 1\nrules: [{name: a, when: [b, 3], score: 1}]",
            r"rule 1 \(a\): `when`: expected text",
        ),
    ],
)
def test_a_bad_file_is_named_with_the_rule_and_what_was_expected(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        RulesJudge.load(file)
    assert str(file) in str(caught.value)


def test_nested_yaml_aliases_do_not_fill_the_error(tmp_path: Path) -> None:
    file, levels = (
        tmp_path / "mine.yaml",
        [f"x{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)],
    )
    file.write_text(
        "\n".join(
            ["version: 1", "rules:", "- {name: &a0 a}", "parts:", *(f"  {line}" for line in levels)]
        )
    )
    with pytest.raises(
        ConfigError, match="`parts`: expected a mapping from names to patterns"
    ) as caught:
        RulesJudge.load(file)
    assert len(str(caught.value)) < 10_000


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"judge\.rules_path"):
        RulesJudge.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("messages", "score", "hint"),
    [
        ([("user", "Perfect, thank you!")], 1, None),
        ([("user", "That is wrong.")], -1, None),
        ([("user", "Too long. Keep it short.")], -1, "Keep answers short."),
        ([("tool", "exit code 0"), ("tool", "exit code 1")], None, None),
        ([("tool", "Traceback (most recent call last):\nKeyError: 'x'")], -1, None),
        ([("user", "And the capital of Peru?")], None, None),
    ],
)
def test_the_shipped_rules(
    messages: list[tuple[str, str]], score: int | None, hint: str | None
) -> None:
    verdict = ask(RulesJudge.load(), item(*messages))
    assert verdict.score == score
    assert verdict.hints == (() if hint is None else (hint,))


NONE, NOT_PRAISE, NOT_BLAME = (None,), (-1, None), (1, None)
ORDINARY: list[tuple[str, tuple[int | None, ...], tuple[str, ...]]] = [
    (
        "tool",
        NONE,
        (
            "def f():\n    return 1",
            '{"error": null}',
            "error: 0",
            "README: command not found is a common problem",
            "I found 3 errors in the text you asked to check",
        ),
    ),
    (
        "user",
        NOT_PRAISE,
        (
            "I don't think that works",
            "I doubt that it works",
            "I wish it helped",
            "if only that worked",
            "Do you know if this helped Napoleon?",
            "that's not a good answer",
            "not a great answer",
            "it isn't perfect",
            "That wasn't perfect",
            "far from perfect",
            "less than perfect",
            "I don't love it",
            "great, now it's broken",
            "that's great, but wrong",
            "Thanks for nothing",
        ),
    ),
    ("user", NOT_BLAME, ("Nope, all good",)),
    (
        "user",
        NONE,
        (
            "Translate 'thank you' to French",
            "Write a thank you note to my aunt",
            "No further changes",
            "No man is an island. who wrote that?",
            "No. 5 by Chanel: who made it?",
            "I was wrong, you are right",
            "Is it wrong to lie?",
            "Why was that wrong in 1800?",
            "Which is longer, a mile or a kilometre?",
            "Is 5 km longer than 3 miles?",
            "Which of the two is shorter?",
            "What is too long for a tweet?",
            "Use a list to store these items in Python",
            "What's a nice text editor?",
            "How do I write a polite reply to my boss?",
            "Explain in full",
        ),
    ),
]


@pytest.mark.parametrize(
    ("who", "allowed", "text"),
    [(who, allowed, text) for who, allowed, texts in ORDINARY for text in texts],
)
def test_ordinary_text_gives_no_verdict(
    who: str, allowed: tuple[int | None, ...], text: str
) -> None:
    verdict = ask(RulesJudge.load(), item((who, text)))
    assert verdict.score in allowed, verdict.reason
    assert verdict.score is not None or verdict.hints == ()


@pytest.mark.parametrize("words", ["could you please ", "can you ", "much too ", "it is too "])
def test_a_polite_person_is_judged_in_linear_time(words: str) -> None:
    """These took minutes, and the judge was killed and began again for ever."""
    judge = RulesJudge.load()

    def judge_words(count: int) -> None:
        assert ask(judge, item(("user", words * count))).score is None

    judge_words(30)
    check_linear_growth(judge_words, lambda size: size, 4_000)


def test_unless_cancels_a_match(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "version: 1\nrules: [{name: a, when: great, unless: but, score: 1}]"
    )
    judge = RulesJudge.load(tmp_path / "r.yaml")
    assert [ask(judge, item(("user", text))).score for text in ("great", "great, but")] == [1, None]


def test_pattern_lists_are_alternatives_and_parts_use_later_parts(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "version: 1\n"
        "parts: {praise: [great, '<fine>'], fine: fine|dandy}\n"
        "rules: [{name: a, when: ['^<praise>$', oh], unless: [but], score: 1}]"
    )
    judge = RulesJudge.load(tmp_path / "r.yaml")
    texts = ("great", "dandy", "greatest", "oh yes", "oh but")
    assert [ask(judge, item(("user", text))).score for text in texts] == [1, 1, None, 1, None]


def test_a_file_may_be_for_the_messages_of_one_language(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "version: 1\nparts: {kana: '[ぁ-ん]'}\nwhen: <kana>\nunless: '訳して'\nrules: [{name: a, when: 最高, score: 1}]"
    )
    judge = RulesJudge.load(tmp_path / "r.yaml")
    assert [
        ask(judge, item(("user", text))).score for text in ("最高です", "最高", "最高を訳して")
    ] == [1, None, None]


def test_what_follows_the_words_of_others_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "version: 1\nothers: 'he says'\nrules: [{name: a, when: wrong, who: any, score: -1}]"
    )
    judge = RulesJudge.load(tmp_path / "r.yaml")
    texts = ("wrong", "he says it is wrong", "wrong, and he says so", 'is "this is wrong" wrong?')
    assert [ask(judge, item(("user", text))).score for text in texts] == [-1, None, -1, -1]
    assert ask(judge, item(("tool", "he says it is wrong"))).score == -1


def test_a_rule_cannot_have_words_of_others(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "version: 1\nrules: [{name: a, when: wrong, others: b, score: -1}]"
    )
    with pytest.raises(ConfigError, match="unknown key 'others'"):
        RulesJudge.load(tmp_path / "r.yaml")


def test_a_no_to_a_question_of_the_reply_is_no_complaint(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "version: 1\nrules: [{name: a, when: ^no, unless_reply: '[?]$', score: -1}]"
    )
    judge = RulesJudge.load(tmp_path / "r.yaml")
    asked = replace(
        item(("user", "no")), reply={"role": "assistant", "content": "<think>?</think>Shall I?"}
    )
    assert [ask(judge, one).score for one in (item(("user", "no")), asked)] == [-1, None]


def test_a_folder_of_files_is_one_judge_and_names_its_rules(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nrules: [{name: a, when: great, score: 1}]")
    (tmp_path / "theirs.yaml").write_text("version: 1\nrules: [{name: a, when: bad, score: -1}]")
    (tmp_path / "notes.txt").write_text("no rules")
    judge = RulesJudge.load(tmp_path)
    assert [ask(judge, item(("user", text))).reason for text in ("great", "bad", "?")] == [
        "matched: mine/a",
        "matched: theirs/a",
        "abstained: no rule matches",
    ]
    (tmp_path / "theirs.yaml").write_text("version: 1\nrules: [{name: a, when: bad, score: 1}]")
    assert RulesJudge.load(tmp_path).name != judge.name


def test_a_folder_without_rules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at least one \*\.yaml file"):
        RulesJudge.load(tmp_path)


def test_a_long_message_is_a_pasted_text() -> None:
    judge, log = RulesJudge.load(), "x\n" * MAX_USER_CHARS
    texts = (f"Thanks!\n{log}", f"{log}\nThat is wrong.", f"{log}\nThat is wrong.\n{log}")
    assert [ask(judge, item(("user", text))).score for text in texts] == [None, None, None]
    marked = f"That is wrong.\n```\n{log}```"
    assert ask(judge, item(("user", marked))).score == -1


def test_patterns_may_use_named_parts(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "version: 1\nparts: {end: '[.!]'}\nrules: [{name: a, when: 'great<end>', score: 1}]"
    )
    judge = RulesJudge.load(tmp_path / "r.yaml")
    assert [ask(judge, item(("user", text))).score for text in ("great!", "great")] == [1, None]
