"""`openclaw-rl open`: a new link to the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.load_config import load_running_config
from openclaw_rl.common.printable import echo
from openclaw_rl.settings.cli_options import home_options

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config


@click.command("open")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@click.option(
    "--sign-out",
    is_flag=True,
    help="Sign out all browsers, and make links that were not used void.",
)
@home_options
def open_page(no_browser: bool, sign_out: bool, **options: Any) -> None:
    """Print a new link to the page, and open it in the browser where there is one.

    The page shows what was learned from you, and takes it back. A link works once, within ten minutes.
    """
    import webbrowser

    from openclaw_rl.common.gateway_address import running_address, running_page
    from openclaw_rl.errors import OpenClawError

    config = load_running_config(**options)
    if sign_out:
        sign_out_browsers(config)
        return
    home = config.home_dir
    is_running = running_page(home) is not None and running_address(home) is not None
    if not config.serve.page or not is_running:
        raise OpenClawError(
            f"no page runs on {home}: expected a running system with serve.page true. "
            "`openclaw-rl up` starts one"
        )
    link = create_link(config)
    echo(link)
    if not no_browser and has_display():
        webbrowser.open(link)


def has_display() -> bool:
    """Return whether a browser can open a window here: not over ssh, in a container or without a screen."""
    import sys
    import webbrowser

    if not sys.stdout.isatty():
        return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # A browser in the terminal would show the page without its scripts, in the place of the link.
    return type(browser) is not webbrowser.GenericBrowser


def create_link(config: Config) -> str:
    """Return a new link to the page of the system that runs on the home."""
    import time

    from openclaw_rl.status.report import open_store
    from openclaw_rl.store import page_access

    with open_store(config) as store, store.write() as conn:
        ticket = page_access.create_ticket(conn, at=time.time())
    return f"{config.serve.url}/ui#{ticket}"


def sign_out_browsers(config: Config) -> None:
    """Sign out all browsers."""
    import time

    from openclaw_rl.status.report import open_store
    from openclaw_rl.store import page_access
    from openclaw_rl.store.acts import ActActor, ActKind, record_act

    with open_store(config) as store, store.write() as conn:
        count = page_access.end_all_sessions(conn)
        record_act(
            conn,
            ActKind.SIGN_OUT,
            "",
            actor=ActActor.COMMAND,
            outcome=f"{count} browsers were signed out",
            at=time.time(),
        )
    echo(f"{count} browsers were signed out")
