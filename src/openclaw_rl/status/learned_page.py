"""Output of `learned`: for the terminal, and as a page of HTML that needs no other file."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.printable import to_printable
from openclaw_rl.status.inspect import reply_text, shorten_line, verdict_text
from openclaw_rl.status.learned import TITLED_SESSIONS
from openclaw_rl.status.sentences import count_of

# Agents, sessions and hints that are shown.
MAX_ROWS = TITLED_SESSIONS
# Columns of a text.
_WIDTH = 2000
_GREEN = (0, 150, 60)
_RED = (215, 45, 45)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222;
       background: #fff }
h2 { border-top: 1px solid #ccc; padding-top: .6rem; font-size: 1.1rem }
table { border-collapse: collapse; margin: .4rem 0 1.2rem; width: 100% }
th { text-align: left; vertical-align: top; width: 8rem; color: #666; font-weight: normal }
td, th { padding: .1rem .6rem .1rem 0 }
.text { white-space: pre-wrap; overflow-wrap: anywhere }
"""


def _lesson_lines(data: Mapping[str, Any]) -> list[str]:
    """Return one line for each lesson, newest first: what it says, and where it is."""
    rows = data["in_words"]
    lines = [f"{row['text']} ({row['place']})" for row in rows[:MAX_ROWS]]
    more = len(rows) - MAX_ROWS
    return [*lines, f"and {more} more: openclaw-rl lessons"] if more > 0 else lines


def practice_line(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for the replies of practice of a version."""
    prompts = len({turn["practice_of"] for turn in turns})
    line = f"{count_of(len(turns), 'reply', 'replies')} to {count_of(prompts, 'prompt')}"
    contrasts = sum(turn["contrast"] for turn in turns)
    if not contrasts:
        return line
    return (
        f"{line}; {contrasts} of them contrasts, answered under a wish that contradicts the lesson"
    )


def split_practice(
    version: Mapping[str, Any],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the turns of people, and the replies of practice."""
    practised = [turn for turn in version["turns"] if turn["practice_of"] is not None]
    return [turn for turn in version["turns"] if turn["practice_of"] is None], practised


def _most_frequent(counts: Mapping[str, int], titles: Mapping[str, str]) -> list[str]:
    shown = [f"{titles.get(name, name) or '(no name)'} {n}" for name, n in counts.items()]
    more = len(shown) - MAX_ROWS
    return shown if more <= 0 else [*shown[:MAX_ROWS], f"and {more} more"]


def _summary_rows(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    practised = f", of which {data['practice']} are replies of practice" if data["practice"] else ""
    counted = ""
    if "counted_versions" in data:
        counted = f", in the newest {data['counted_versions']} versions"
    rows = [("turns", f"{data['turns']}{practised}{counted}")]
    titles = {name: f"“{text}”" for name, text in data["session_titles"].items()}
    for title in ("agents", "sessions"):
        shown = _most_frequent(data[title], titles)
        if shown:
            rows.append((title, ", ".join(shown)))
    rows += [
        (f"hint {row['id']}", f"{_count_turns(row['turns'])}: {row['hint']}")
        for row in data["lessons"][:MAX_ROWS]
    ]
    more = len(data["lessons"]) - MAX_ROWS
    if more > 0:
        rows.append(("hints", f"and {more} more"))
    return rows


def _feedback_text(feedback: Mapping[str, Any]) -> str:
    parts = [feedback["comment"], feedback["correction"]]
    if feedback["score"] is not None:
        parts.insert(0, f"score {feedback['score']}")
    return " ".join(part for part in parts if part)


def _version_title(version: Mapping[str, Any]) -> str:
    created = datetime.fromtimestamp(version["at"]).strftime("%Y-%m-%d %H:%M")
    again = ", trained again by an undo" if version["retrained"] else ""
    return (
        f"version {version['version']} (of {version['parent']}), {created}, "
        f"{_count_turns(len(version['turns']))}{again}"
    )


def _count_turns(number: int) -> str:
    return f"{number} turn{'' if number == 1 else 's'}"


def _turn_rows(turn: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows below the reply."""
    rows = []
    reaction = turn["reaction"]
    if reaction:
        messages = [shorten_line(message_text(message), _WIDTH) for message in reaction["messages"]]
        feedback = [_feedback_text(row) for row in reaction["feedback"]]
        rows.append(("reaction", " / ".join([*messages, *feedback])))
    if turn["verdict"]:
        rows.append(("verdict", verdict_text(turn["verdict"])))
    if turn["damaged"]:
        rows.append(("damaged", turn["damaged"]))
    credit = turn["credit"]
    if credit is not None:
        count = sum(value != 0 for value in credit["values"]) or 1
        rows.append(
            (
                "credit",
                f"{credit['sum']:+.3g} over {count} tokens, {credit['sum'] / count:+.3g} each",
            )
        )
    rows.append(("turn", _turn_title(turn)))
    return rows


def _turn_title(turn: Mapping[str, Any]) -> str:
    """Return the id of a turn, and where it comes from."""
    replay = ", a replay" if turn["replay"] else ""
    if turn["practice_of"] is not None:
        kind = "practice, another reply"
        if turn["contrast"]:
            kind = "contrast, a reply under a wish that contradicts the lesson"
        return f"{turn['turn']}, {kind} to the prompt of {turn['practice_of']}{replay}"
    agent = f", agent {turn['agent']}" if turn["agent"] else ""
    return f"{turn['turn']}, session {turn['session']}{agent}{replay}"


def _tokens_with_credit(turn: Mapping[str, Any]) -> list[tuple[str, float]] | None:
    """Return (text, credit) of each token with text; None if the text or the credit is not known."""
    credit = turn["credit"]
    if credit is None or not credit["tokens"] or turn["reply"] is None:
        return None
    return [
        (text, value)
        for text, value in zip(credit["tokens"], credit["values"], strict=True)
        if text
    ]


def _reply_of(turn: Mapping[str, Any]) -> str:
    return "(redacted)" if turn["reply"] is None else reply_text(turn["reply"]["message"], _WIDTH)


def _answer_rows(version: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (
            f"probe {answer['probe']}",
            f"{answer['question']}\nbefore: {answer['before']}\nafter: {answer['after']}",
        )
        for answer in version["changed_answers"]
    ]


def largest_credit(data: Mapping[str, Any]) -> float:
    """Return the largest absolute credit of a token in the data, which gets the full colour; at least a tiny one."""
    credits = (turn["credit"] for version in data["versions"] for turn in version["turns"])
    return (
        max((abs(value) for credit in credits if credit for value in credit["values"]), default=0.0)
        or 1e-9
    )


# ---------------------------------------------------------------------------------------- terminal


def render_learned(data: Mapping[str, Any], *, with_practice: bool = False) -> RenderableType:
    """Render for the terminal. Credit is the colour behind a token: green makes it more likely, red less.

    `with_practice`: show each reply of practice, not only their number.
    """
    largest = largest_credit(data)
    parts: list[RenderableType] = [Text(line, "bold") for line in _lesson_lines(data)]
    parts.append(_render_rows((title, Text(text)) for title, text in _summary_rows(data)))
    for version in data["versions"]:
        parts.append(Rule(Text(_version_title(version)), align="left", style="dim"))
        said, practised = split_practice(version)
        for turn in [*said, *(practised if with_practice else ())]:
            rows = [
                ("user", Text(shorten_line(turn["user"], _WIDTH))),
                ("reply", _render_reply(turn, largest)),
            ]
            parts.append(
                _render_rows([*rows, *((title, Text(text)) for title, text in _turn_rows(turn))])
            )
        if practised and not with_practice:
            line = f"{practice_line(practised)} (--practice shows them)"
            parts.append(_render_rows([("practice", Text(line))]))
        answers = _answer_rows(version)
        if answers:
            parts.append(_render_rows((title, Text(text)) for title, text in answers))
    return Group(*parts)


def _render_rows(rows: Iterable[tuple[str, Text]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in rows:
        table.add_row(title, text)
    table.add_row("", "")
    return table


def _render_reply(turn: Mapping[str, Any], largest: float) -> Text:
    tokens = _tokens_with_credit(turn)
    if tokens is None:
        return Text(_reply_of(turn), "cyan")
    out = Text()
    for text, credit in tokens:
        out.append(
            text,
            None
            if credit == 0
            else f"white on rgb({','.join(map(str, _dark_colour(credit, largest)))})",
        )
    return out


def _dark_colour(credit: float, largest: float) -> list[int]:
    share = 0.4 + 0.6 * min(1.0, abs(credit) / largest)
    return [round(channel * share) for channel in (_GREEN if credit > 0 else _RED)]


# -------------------------------------------------------------------------------------------- HTML


def learned_html(data: Mapping[str, Any]) -> str:
    """Return the page. It has no script and loads nothing."""
    largest = largest_credit(data)
    lines = "".join(f"<li>{_escape(line)}</li>\n" for line in _lesson_lines(data))
    body = [f"<ul>\n{lines}</ul>"] if lines else []
    body.append(_html_table((t, _escape(text)) for t, text in _summary_rows(data)))
    for version in data["versions"]:
        body.append(f"<h2>{_escape(_version_title(version))}</h2>")
        said, practised = split_practice(version)
        body += [_html_turn(turn, largest) for turn in said]
        if practised:
            inner = "\n".join(_html_turn(turn, largest) for turn in practised)
            summary = _escape(f"practice: {practice_line(practised)}")
            body.append(f"<details><summary>{summary}</summary>\n{inner}\n</details>")
        body.append(_html_table((title, _escape(text)) for title, text in _answer_rows(version)))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    title = f"What version {data['version']} has learned"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n<p>Green tokens were made more likely, red ones less.</p>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _html_turn(turn: Mapping[str, Any], largest: float) -> str:
    rows = [
        ("user", _escape(turn["user"] or "(redacted)")),
        ("reply", _html_reply(turn, largest)),
    ]
    return _html_table([*rows, *((title, _escape(text)) for title, text in _turn_rows(turn))])


def _escape(text: str) -> str:
    return html.escape(to_printable(text))


def _html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table. `rows`: (title, escaped HTML)."""
    cells = "".join(
        f'<tr><th>{_escape(title)}</th><td class="text">{text}</td></tr>\n' for title, text in rows
    )
    return f"<table>\n{cells}</table>" if cells else ""


def _html_reply(turn: Mapping[str, Any], largest: float) -> str:
    tokens = _tokens_with_credit(turn)
    if tokens is None:
        return _escape(_reply_of(turn))
    return "".join(_html_token(text, credit, largest) for text, credit in tokens)


def _html_token(text: str, credit: float, largest: float) -> str:
    if credit == 0:
        return _escape(text)
    red, green, blue = _GREEN if credit > 0 else _RED
    share = 0.1 + 0.6 * min(1.0, abs(credit) / largest)
    style = f"background:rgba({red},{green},{blue},{share:.2f})"
    return f'<span style="{style}" title="{credit:+.3g}">{_escape(text)}</span>'
