"""`openclaw-rl lessons`: what people said about replies in words, and what stands in prompts because of it."""

from __future__ import annotations

from typing import Any

import click

from openclaw_rl.cli.help_sections import ListingGroup
from openclaw_rl.cli.load_config import load_config, load_running_config
from openclaw_rl.common.printable import echo, to_printable
from openclaw_rl.settings.cli_options import home_options

_lesson_argument = click.argument("lesson")


@click.group("lessons", cls=ListingGroup, default="list")
def lesson_commands() -> None:
    """List, edit, pin and forget what was learned in words. Without a command: list."""


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
    from openclaw_rl.owner_acts import lessons as acts
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    acts.checked_text(text)
    config = load_config(**options)
    with open_store(config) as store:
        edited = acts.edit_lesson(store, config, lesson, text, ActOrigin())
    echo(f"{lesson}: {edited.text}")
    for rival in edited.superseded:
        echo(f"{rival.id} is superseded: {rival.text}")
    if edited.superseded_by is not None:
        echo(
            f"it is in no prompt: {edited.superseded_by} superseded it. To change that: "
            f"openclaw-rl lessons pin {lesson}"
        )


@lesson_commands.command("pin")
@_lesson_argument
@home_options
def pin_lesson(lesson: str, **options: Any) -> None:
    """Keep LESSON in prompts, whatever is said later. The lesson that superseded it is superseded, and not pinned."""
    from openclaw_rl.owner_acts import lessons as acts
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    with open_store(load_config(**options)) as store:
        pinned = acts.pin_lesson(store, lesson, ActOrigin())
    echo(f"{lesson} is pinned: {pinned.lesson.text}")
    rival = pinned.rival
    if rival is not None:
        echo(
            f"{rival.id} is superseded{' and no longer pinned' if rival.is_pinned else ''}: {rival.text}"
        )


@lesson_commands.command("unpin")
@_lesson_argument
@home_options
def unpin_lesson(lesson: str, **options: Any) -> None:
    """Let LESSON leave prompts, and be superseded by later ones."""
    from openclaw_rl.owner_acts import lessons as acts
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    with open_store(load_config(**options)) as store:
        stored = acts.unpin_lesson(store, lesson, ActOrigin())
    echo(f"{lesson} is not pinned: {stored.text}")


@lesson_commands.command("share")
@_lesson_argument
@home_options
def share_lesson(lesson: str, **options: Any) -> None:
    """Let LESSON reach others than the person who said it: other users of the key, and weights that others share."""
    from openclaw_rl.owner_acts import lessons as acts
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    with open_store(load_config(**options)) as store:
        stored = acts.share_lesson(store, lesson, ActOrigin())
    echo(f"{lesson} is shared: {stored.text}")


@lesson_commands.command("forget")
@_lesson_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@home_options
def forget_lesson(lesson: str, yes: bool, **options: Any) -> None:
    """Delete LESSON. It leaves prompts at once; lessons that it superseded are in force again.

    What the weights have learned stays: `openclaw-rl undo --lesson LESSON` takes that out, too, with the turns.
    """
    from openclaw_rl.owner_acts import lessons as acts
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    with open_store(load_config(**options)) as store:
        if not yes:
            with store.read() as conn:
                text = acts.require_lesson(conn, lesson).text
            click.confirm(f"Forget {to_printable(text)!r}?", abort=True)
        forgotten = acts.forget_lesson(store, lesson, ActOrigin())
    echo(f"{lesson} is forgotten: {forgotten.text}")
