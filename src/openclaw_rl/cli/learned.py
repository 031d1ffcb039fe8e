"""`openclaw-rl learned`: what the policy was trained on."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from openclaw_rl.cli.load_config import load_running_config
from openclaw_rl.common.printable import echo
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.cli_options import home_options


@click.command("learned")
@click.argument("version", type=click.IntRange(min=0), required=False)
@click.option(
    "--policy",
    "name",
    metavar="NAME",
    help="The head of this policy (policy.per), e.g. agent:coder.",
)
@click.option(
    "--since", metavar="WHEN", help="Only versions made since then: 12h, 7d, or 2026-03-01."
)
@click.option("--session", metavar="ID", help="Only the turns of this session.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    default=10,
    show_default=True,
    help="Versions at most.",
)
@click.option("--practice", "with_practice", is_flag=True, help="Show each reply of practice.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", "page", metavar="FILE", help="Write a page of HTML instead.")
@home_options
def show_learned(
    version: int | None,
    name: str | None,
    since: str | None,
    session: str | None,
    limit: int,
    with_practice: bool,
    as_json: bool,
    page: str | None,
    **options: Any,
) -> None:
    """Show what VERSION has learned, and from which turns.

    The default VERSION is the head. Prints the lessons, then the turns behind each version, newest first: the reply
    with the credit of each token, what the person said, the verdict and its hints; and the probe answers that changed.
    Practice is one line for each version.
    """
    from openclaw_rl.common.terminal import print_data
    from openclaw_rl.status.learned import collect_learned, make_token_splitter
    from openclaw_rl.status.learned_page import learned_html, render_learned
    from openclaw_rl.status.report import read_store
    from openclaw_rl.store.lineage import policies
    from openclaw_rl.store.lineage.policy_names import require_name
    from openclaw_rl.trajectories.operations import parse_since

    if name is not None and version is not None:
        raise click.UsageError("give VERSION or --policy, not both.")
    config = load_running_config(**options)
    after = None if since is None else parse_since(since, time.time())
    with read_store(config) as conn:
        splitter = make_token_splitter(config)
        if name is not None:
            version = policies.head(conn, require_name(conn, name)).version
        data = collect_learned(
            conn,
            splitter,
            version=version,
            since=after,
            session=session,
            limit=limit,
            lessons_mode=config.serve.lessons,
        )
    if page is not None:
        try:
            Path(page).expanduser().write_text(
                learned_html(data), encoding="utf-8", errors="replace"
            )
        except OSError as error:
            raise OpenClawError(
                f"--html {page} cannot be written: {error.strerror or error}"
            ) from error
        echo(f"{page}: {len(data['versions'])} versions")
    else:
        render = partial(render_learned, with_practice=with_practice)
        print_data(data, render, as_json=as_json, highlight=False)
