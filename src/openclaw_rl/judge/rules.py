"""Judge without a model: regular expressions over the reaction, from a YAML file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.linear_regex import LinearPattern, PatternError
from openclaw_rl.common.message_hash import message_text, normalise_text, strip_time_stamp
from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.voting import distinct_hints, make_verdict
from openclaw_rl.types import JudgeInput, Reaction, Verdict, Vote

_ROLES_OF_SPEAKER: Mapping[str, tuple[str, ...]] = {
    "user": ("user",),
    "tool": ("tool", "function"),
    "any": ("user", "tool", "function"),
}
MAX_SEARCHED_CHARS = 65_536
"""Characters of a message that all rules search: its head and its tail."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_text_or_none(value: Any) -> bool:
    return value is None or _is_text(value)


_RULE_KEYS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_text, "text"),
    "when": (_is_text, "text"),
    "unless": (_is_text_or_none, "text"),
    "who": (lambda value: value in tuple(_ROLES_OF_SPEAKER), "user, tool or any"),
    "score": (lambda value: value in (None, 1, -1) and not isinstance(value, bool), "1, -1 or nothing"),
    "hint": (_is_text_or_none, "text"),
}
"""Keys of a rule, each with a check of its value and a description of valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of the file."""

    name: str
    when: LinearPattern
    who: str
    score: int | None
    hint: str | None
    unless: LinearPattern | None = None

    def matches_any(self, messages: Sequence[tuple[str, str]]) -> bool:
        """Whether the rule matches any (role, text) whose role it covers."""
        return any(role in _ROLES_OF_SPEAKER[self.who] and self._matches_text(text) for role, text in messages)

    def _matches_text(self, text: str) -> bool:
        return self.when.matches(text) and not (self.unless and self.unless.matches(text))


class RulesJudge:
    """Judge in which all matching rules vote; it abstains if their scores disagree or no rule matches."""

    def __init__(self, rules: Sequence[Rule], name: str = "rules") -> None:
        self.rules = tuple(rules)
        self.name = name

    @staticmethod
    def load(path: str | Path | None = None) -> RulesJudge:
        """Load a file; None: the shipped rules. Raises `ConfigError` with file, rule and expected value."""
        file = Path(path or ASSETS / "rules.yaml").expanduser()
        try:
            raw = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{file}: the judge's rules cannot be read: {error}. "
                "Set judge.rules_path to a YAML file, or leave it unset for the shipped rules."
            ) from error
        rules = tuple(_parse_rules(raw, str(file)))
        return RulesJudge(rules, f"rules@{hashlib.sha256(raw.encode()).hexdigest()[:8]}")

    async def judge(self, item: JudgeInput) -> Verdict:
        """Return the verdict on the whole reaction: all user messages and all parallel tool results."""
        said = tuple(_reaction_texts(item.reaction))
        matching = [rule for rule in self.rules if rule.matches_any(said)]
        scores = {rule.score for rule in matching if rule.score is not None}
        score, reason = _combine_scores(matching, scores)
        votes = (Vote(score=r.score, hint=r.hint, reason=r.name) for r in matching)
        return make_verdict(item, self.name, score, reason, votes=votes, hints=distinct_hints(r.hint for r in matching))


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
        text = strip_time_stamp(normalise_text(message_text(message)))  # rules may match the start of the text
        yield str(message.get("role", "")), head_and_tail(text, MAX_SEARCHED_CHARS)
    for given in reaction.feedback:
        if given.comment:
            yield "user", head_and_tail(normalise_text(given.comment), MAX_SEARCHED_CHARS)


def _parse_rules(raw: str, source: str) -> Iterator[Rule]:
    try:
        tree = yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError) as error:  # `ValueError`: an invalid date, or a number that is too long
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply. Expected `version: 1` and a list `rules:`") from None
    if not isinstance(tree, dict) or tree.get("version") != 1:
        got = tree.get("version") if isinstance(tree, dict) else type(tree).__name__
        raise ConfigError(f"{source}: expected a mapping with `version: 1`, got {got!r}")
    entries = tree.get("rules")
    if set(tree) - {"parts"} != {"version", "rules"} or not isinstance(entries, list) or not entries:
        raise ConfigError(f"{source}: expected `version: 1` and a list `rules:`, got the keys {sorted(map(str, tree))}")
    parts = tree.get("parts", {})
    if not isinstance(parts, dict) or not all(isinstance(value, str) for value in parts.values()):
        raise ConfigError(f"{source}: `parts`: expected a mapping from names to patterns, got {parts!r}")
    names: set[str] = set()
    for number, entry in enumerate(entries, 1):
        rule = _parse_rule(_fill_parts(entry, parts), number, source)
        if rule.name in names:
            raise ConfigError(f"{source}: rule {rule.name!r}: expected distinct names, got this one twice")
        names.add(rule.name)
        yield rule


def _fill_parts(entry: Any, parts: Mapping[str, str]) -> Any:
    """Return the entry with each `<name>` in its patterns replaced by the part of that name."""
    if not isinstance(entry, dict):
        return entry
    out = dict(entry)
    for key in ("when", "unless"):
        for name, part in parts.items():
            if isinstance(out.get(key), str):
                out[key] = out[key].replace(f"<{name}>", part)
    return out


def _parse_rule(entry: Any, number: int, source: str) -> Rule:
    where = f"{source}: rule {number}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected a mapping with {', '.join(_RULE_KEYS)}; got {entry!r}")
    values = {"who": "user", **entry}
    for key, (is_valid, expected) in _RULE_KEYS.items():
        value = values[key] = values.get(key)
        if not is_valid(value):
            raise ConfigError(f"{where}: `{key}`: expected {expected}; got {value!r}")
        where = f"{source}: rule {number} ({values['name'].strip()})"
    if unknown := [key for key in entry if key not in _RULE_KEYS]:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; expected {', '.join(_RULE_KEYS)}")
    if values["score"] is None and values["hint"] is None:
        raise ConfigError(f"{where}: expected a `score`, a `hint` or both; got neither")
    for key in ("when", "unless"):
        try:
            values[key] = values[key] and LinearPattern(f"(?i){values[key]}")
        except PatternError as error:
            got = f"{values[key]!r}: {error}"
            raise ConfigError(f"{where}: `{key}`: expected a regular expression of RE2, got {got}") from error
    return Rule(**values | {key: values[key] and values[key].strip() for key in ("name", "hint")})
