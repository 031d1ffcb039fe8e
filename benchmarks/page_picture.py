"""Take the pictures of the page that the documentation shows, in a real browser on the home of a demo.

make page-picture        (or: .page-venv/bin/python -m benchmarks.page_picture HOME)
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from openclaw_rl.cli.page import create_link
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

IMAGES = Path(__file__).parent.parent / "docs" / "images"
VIEWS = {"page": "/ui/learned", "page_now": "/ui/now"}
"""Name of a picture -> address of its view."""
SIZE = {"width": 1180, "height": 760}


def take_pictures(home: Path) -> None:
    """Write a PNG of each view. Raises `SystemExit` without a Chromium on PATH."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("no Chromium is on PATH. On Debian: apt install chromium")
    with SubprocessSystem(scratch_config(home.resolve())) as system, sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(create_link(system.config))
        page.wait_for_url("**/ui/now")
        for name, path in VIEWS.items():
            page.goto(system.base_url + path)
            page.wait_for_load_state("load")
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_picture", description=__doc__)
    parser.add_argument("home", type=Path, help="the home of a demo")
    take_pictures(parser.parse_args().home)


if __name__ == "__main__":
    main()
