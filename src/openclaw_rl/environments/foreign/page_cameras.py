"""Pictures of pages: by the library's own playwright, or by Selenium, attached to the same browser."""

from __future__ import annotations

import atexit
import importlib.util
import io
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from request_loop import ForeignRefusal

_REQUIREMENT = "'selenium>=4.51,<5'"
_PORT_SECONDS = 10.0


class PlaywrightCamera:
    """Takes pictures as the library does."""

    browser_arguments: Sequence[str] = ()

    def require_programs(self) -> None:
        """Do nothing: the library has what is needed."""

    def take_picture(self, page: Any) -> Any:
        """Return an image of the page as the browser shows it."""
        from browsergym.core.observation import extract_screenshot
        from PIL import Image

        return Image.fromarray(extract_screenshot(page))


class SeleniumCamera:
    """Takes pictures by a chromedriver, attached to the browser of the page, which listens on a port of loopback.

    All methods are for the thread of the browser: chromedriver has one current window.
    """

    browser_arguments: Sequence[str] = ("--remote-debugging-port=0",)  # a free one

    def __init__(self) -> None:
        self._browser: Any = None
        self._driver: Any = None
        atexit.register(self._end_driver)

    def require_programs(self) -> str:
        """Return the path of chromedriver. Raises `ForeignRefusal` without it or without Selenium."""
        if importlib.util.find_spec("selenium") is None:
            raise ForeignRefusal(
                "screenshots=selenium: there is no module selenium. Expected it beside the library: "
                f"{sys.executable} -m pip install {_REQUIREMENT}"
            )
        driver = shutil.which("chromedriver")
        if driver is None:
            raise ForeignRefusal(
                "screenshots=selenium: no chromedriver on PATH. Expected the one of the browser's version (on Debian: "
                "apt install chromium-driver)"
            )
        return driver

    def take_picture(self, page: Any) -> Any:
        """Return an image of the page. Raises `ForeignRefusal`, `selenium.common.exceptions.WebDriverException`."""
        from PIL import Image

        # The first one, or one that was started after the last died.
        if page.context.browser is not self._browser:
            self._end_driver()
            self._attach_driver(page.context.browser)
        try:
            self._driver.switch_to.window(find_target(page))
            content = self._driver.get_screenshot_as_png()
        except Exception:
            # Whatever fails, the driver may be in any state: the next picture gets another one.
            self._end_driver()
            raise
        return Image.open(io.BytesIO(content)).convert("RGB")

    def _attach_driver(self, browser: Any) -> None:
        from selenium import webdriver
        from selenium.common.exceptions import SessionNotCreatedException

        options = webdriver.ChromeOptions()
        options.debugger_address = f"127.0.0.1:{find_debugging_port(browser)}"
        # The page is as the library left it.
        options.page_load_strategy = "none"
        # As playwright does.
        options.unhandled_prompt_behavior = "dismiss"
        try:
            self._driver = webdriver.Chrome(
                options, webdriver.ChromeService(self.require_programs())
            )
        except SessionNotCreatedException as error:
            # Selenium appends an address.
            reason = str(error.msg).partition("; For documentation")[0]
            raise ForeignRefusal(
                f"screenshots=selenium: chromedriver does not attach to the browser: {reason}. Expected the "
                f"chromedriver of version {browser.version}"
            ) from None
        self._browser = browser

    def _end_driver(self) -> None:
        if self._driver is not None:
            service = self._driver.service
            # Without the end of its session, which a browser that died does not answer.
            service.process.kill()
            service.process.wait()
            # Else it asks the port to shut down, which may be another program's by then.
            service.process = None
        self._browser = self._driver = None


CAMERAS = {"playwright": PlaywrightCamera, "selenium": SeleniumCamera}


def find_target(page: Any) -> str:
    """Return the id of a page among all targets of the browser, which is also the name of its window in WebDriver."""
    session = page.context.new_cdp_session(page)
    try:
        return str(session.send("Target.getTargetInfo")["targetInfo"]["targetId"])
    finally:
        session.detach()


def find_debugging_port(browser: Any) -> int:
    """Return the port on which a browser listens. It writes it into its profile. Raises `ForeignRefusal`."""
    session = browser.new_browser_cdp_session()
    arguments = session.send("Browser.getBrowserCommandLine")["arguments"]
    session.detach()
    (profile,) = (
        word.partition("=")[2] for word in arguments if word.startswith("--user-data-dir=")
    )
    file = Path(profile) / "DevToolsActivePort"
    deadline = time.monotonic() + _PORT_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise ForeignRefusal(
                f"the browser did not open its debugging port within {_PORT_SECONDS:g} s"
            )
        time.sleep(0.05)
    return int(file.read_text().split()[0])
