"""`openclaw-rl lessons`: what people said about replies in words, and what stands in prompts because of it."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.load_config import load_config, load_running_config
from openclaw_rl.common.printable import echo, to_printable
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.cli_options import home_options

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from openclaw_rl.settings.load import Config
    from openclaw_rl.store.lessons.lessons import Lesson

_lesson_argument = click.argument("lesson")


@click.group("lessons")
def lesson_commands() -> None:
    """List, edit, pin and forget what was learned in words."""


@lesson_commands.command("list")
@click.option(
    "--all", "with_superseded", is_flag=True, help="Also lessons that a later one contradicts."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@home_options
def list_lessons(with_superseded: bool, as_json: bool, **options: Any) -> None:
    """List the lessons with their evidence.

    Prints for each lesson its id, whether it is in prompts or in the weights, whom it is for, and what was said.
    """
    from openclaw_rl.status.lessons_report import show_lessons

    show_lessons(load_running_config(**options), with_superseded=with_superseded, as_json=as_json)


@lesson_commands.command("edit")
@_lesson_argument
@click.argument("text")
@home_options
def edit_lesson(lesson: str, text: str, **options: Any) -> None:
    """Replace the text of LESSON. It stands in prompts until the weights follow the new text.

    Lessons that contradict the new text, by the topics of the rules, are superseded.
    """
    from openclaw_rl.common.rules.lesson_topics import load_topics
    from openclaw_rl.store.lessons import lessons, removal
    from openclaw_rl.store.lessons.lessons import MAX_LESSON_CHARS
    from openclaw_rl.store.lessons.scopes import LessonScope

    new_text = " ".join(text.split())
    if not new_text:
        raise OpenClawError("the text is empty. `openclaw-rl lessons forget` deletes a lesson")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in new_text):
        raise OpenClawError(
            "the text has control characters, or bytes that are no UTF-8: expected plain text"
        )
    if len(new_text) > MAX_LESSON_CHARS:
        raise OpenClawError(
            f"the text has {len(new_text):,} characters, and a lesson at most {MAX_LESSON_CHARS:,}"
        )
    config = load_config(**options)
    wish = load_topics(config.judge.wishes_path).topic_of(new_text)
    with _open_lesson(lesson, config) as (conn, stored):
        topic = wish if stored.scope_kind is not LessonScope.QUESTION else ""
        rivals = removal.replace_text(conn, stored.id, new_text, topic=topic, at=time.time())
        edited = lessons.get(conn, stored.id)
    echo(f"{lesson}: {new_text}")
    for rival in rivals:
        echo(f"{rival.id} is superseded: {rival.text}")
    if edited is not None and edited.superseded_by is not None:
        echo(
            f"it is in no prompt: {edited.superseded_by} superseded it. To change that: "
            f"openclaw-rl lessons pin {lesson}"
        )


@lesson_commands.command("pin")
@_lesson_argument
@home_options
def pin_lesson(lesson: str, **options: Any) -> None:
    """Keep LESSON in prompts, whatever is said later. The lesson that superseded it is superseded, and not pinned."""
    from openclaw_rl.store.lessons import pins

    with _open_lesson(lesson, load_config(**options)) as (conn, stored):
        rival = pins.pin_in_force(conn, stored.id)
    echo(f"{lesson} is pinned: {stored.text}")
    if rival is not None:
        echo(
            f"{rival.id} is superseded{' and no longer pinned' if rival.is_pinned else ''}: {rival.text}"
        )


@lesson_commands.command("unpin")
@_lesson_argument
@home_options
def unpin_lesson(lesson: str, **options: Any) -> None:
    """Let LESSON leave prompts, and be superseded by later ones."""
    from openclaw_rl.store.lessons import lessons

    with _open_lesson(lesson, load_config(**options)) as (conn, stored):
        lessons.set_pinned(conn, stored.id, False)
    echo(f"{lesson} is not pinned: {stored.text}")


@lesson_commands.command("share")
@_lesson_argument
@home_options
def share_lesson(lesson: str, **options: Any) -> None:
    """Let LESSON reach others than the person who said it: other users of the key, and weights that others share."""
    from openclaw_rl.store.lessons import lessons

    with _open_lesson(lesson, load_config(**options)) as (conn, stored):
        lessons.share(conn, stored.id)
    echo(f"{lesson} is shared: {stored.text}")


@lesson_commands.command("forget")
@_lesson_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@home_options
def forget_lesson(lesson: str, yes: bool, **options: Any) -> None:
    """Delete LESSON. It leaves prompts at once; lessons that it superseded are in force again.

    What the weights have learned stays: `openclaw-rl undo --lesson LESSON` takes that out, too, with the turns.
    """
    from openclaw_rl.store.lessons import forgotten_wishes

    config = load_config(**options)
    if not yes:
        with _open_lesson(lesson, config) as (_, stored):
            text = stored.text
        # Outside of the transaction, which holds a lock.
        click.confirm(f"Forget {to_printable(text)!r}?", abort=True)
    with _open_lesson(lesson, config) as (conn, stored):
        forgotten_wishes.forget_wish(conn, stored, at=time.time())
    echo(f"{lesson} is forgotten: {stored.text}")


@contextmanager
def _open_lesson(lesson: str, config: Config) -> Iterator[tuple[Connection, Lesson]]:
    """Open a transaction on the home's store with the lesson. Raises `OpenClawError` for an unknown id."""
    from openclaw_rl.status.report import open_store
    from openclaw_rl.store.lessons import lessons

    with open_store(config) as store, store.write() as conn:
        stored = lessons.get(conn, lesson)
        if stored is None:
            raise OpenClawError(
                f"no lesson {lesson!r}. `openclaw-rl lessons list --all` lists the ids"
            )
        yield conn, stored
