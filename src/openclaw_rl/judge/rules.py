"""Judge without a model: regular expressions over the reaction, from YAML files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import (
    normalise_text,
    strip_time_stamp,
    visible_text,
)
from openclaw_rl.common.rules.rule_files import Rule, RuleFile, load_rule_files, rules_path
from openclaw_rl.judge.voting import distinct_hints, make_verdict
from openclaw_rl.types import JudgeInput, Reaction, Verdict, Vote

MAX_SEARCHED_CHARS = 65_536
"""Characters of a tool result that all rules search: its head and its tail."""
MAX_USER_CHARS = 8_192
"""Characters of a person's message that all rules search: what stands between its head and its tail was pasted."""


class RulesJudge:
    """Judge in which all matching rules vote; it abstains if their scores disagree or no rule matches."""

    def __init__(self, files: Sequence[RuleFile], name: str = "rules") -> None:
        self.files = tuple(files)
        self.name = name

    @staticmethod
    def load(path: str | Path | None = None) -> RulesJudge:
        """Load a file or a folder; None: the shipped rules. Raises `ConfigError` (see `load_rule_files`)."""
        files, digest = load_rule_files(rules_path(path))
        return RulesJudge(files, f"rules@{digest}")

    async def judge(self, item: JudgeInput) -> Verdict:
        """Return the verdict on the whole reaction: all user messages and all parallel tool results."""
        texts = tuple(_reaction_texts(item.reaction))
        reply = head_and_tail(visible_text(item.reply), MAX_USER_CHARS)
        matching = [rule for file in self.files for rule in file.matching_rules(texts, reply)]
        scores = {rule.score for rule in matching if rule.score is not None}
        score, reason = _combine_scores(matching, scores)
        votes = (Vote(score=r.score, hint=r.hint, reason=r.name) for r in matching)
        return make_verdict(
            item,
            self.name,
            score,
            reason,
            votes=votes,
            hints=distinct_hints(r.hint for r in matching),
        )


def _combine_scores(matching: Sequence[Rule], scores: set[int]) -> tuple[int | None, str]:
    names = ", ".join(rule.name for rule in matching)
    if not matching:
        return None, "abstained: no rule matches"
    if not scores:
        return None, f"abstained: no matching rule has a score ({names})"
    if len(scores) > 1:
        return None, f"abstained: the matching rules disagree ({names})"
    return scores.pop(), f"matched: {names}"


def _reaction_texts(reaction: Reaction) -> Iterator[tuple[str, str]]:
    """Yield (role, text) of each message; feedback comments have the role user."""
    for message in reaction.messages:
        role = str(message.get("role", ""))
        # Rules may match the start of the text.
        text = strip_time_stamp(visible_text(message))
        yield role, head_and_tail(text, MAX_USER_CHARS if role == "user" else MAX_SEARCHED_CHARS)
    for feedback in reaction.feedback:
        if feedback.comment:
            yield "user", head_and_tail(normalise_text(feedback.comment), MAX_USER_CHARS)
