"""Agent in a web page: a real browser executes the actions of the model.

    pip install 'openclaw-rl[gui]' && playwright install chromium
    openclaw-rl rollout --rollout-function-path examples/plugins/gui_rollout.py --tasks tasks.jsonl

The start page of a task is an address in its text, or its key `start`. Its other keys:

    {"task": "Sign up as Ann.", "start": "http://127.0.0.1:8000/", "expect": "Welcome, Ann",
     "origins": ["https://cdn.example"], "pictures": true, "screenshots": "shots"}

`expect`: text that the page shows once the task is done. Without it the result is unknown, and the judge gets the page
after the last action as the reaction. `screenshots`: a folder for a PNG of each step; true: the folder `screenshots`
beside the results (`--out`).

**Observation**: the model gets the page as text, with roles and names from playwright's `aria_snapshot`. With
`"pictures": true` in the task (or PICTURES below set to True), it also gets a screenshot as an image part. The gateway
refuses images for a policy without vision, such as the shipped starter.

**Permitted pages**: the origin of the start page (for a file: its folder), and `origins`. Nothing else that the model
or a page requests is loaded. Another port of this machine is another origin. A permitted page can still redirect the
browser, or open a WebSocket, to another port of its own host; the browser leaves such a page without showing it.

Browser: the path in the variable GUI_BROWSER, else playwright's own, else the first of ON_PATH. GUI_SANDBOX=0 disables
Chromium's sandbox, which does not work in some containers; for root it is always disabled.
"""

import asyncio
import json
import os
import re
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

PICTURES = False  # True: send screenshots to the policy
SECONDS = 10  # timeout of an action
SETTLE = 0.3  # seconds to wait for the page's scripts after an action
CHARS = 2000  # of the page text that the model sees
TOKENS = (
    512  # of a reply with its reasoning; an endless one would leave no context for the next page
)
SIZE = {"width": 1024, "height": 768}
ON_PATH = ("chromium", "chromium-browser", "google-chrome")
ACTIONS = """\
click button "Send"
type "Ann" into textbox "Name"
goto /address
done"""
HOW = f"""\
Answer with one action in one line and nothing else; of two such buttons the second is button "Send" 2.
{ACTIONS}"""

_STRING = r'"(?:[^"\\]|\\.)*"'
_ELEMENT = rf"(?P<role>[a-z]+)(?: (?P<name>{_STRING}))?(?: (?P<number>[1-9]\d?))?"
_GRAMMAR = re.compile(
    rf"(?P<click>click) {_ELEMENT}|"
    rf"(?P<type>type) (?P<text>{_STRING}) into {_ELEMENT.replace('?P<', '?P<type_')}|"
    r"(?P<goto>goto) (?P<address>\S+)|(?P<done>done)"
)


def parse_gui_action(reply: str) -> dict:
    """Parse the action in a reply into `do` and its arguments. Raises `ValueError` with a text for the model."""
    found = _GRAMMAR.fullmatch(reply.strip())
    if found is None:
        raise ValueError(f"expected one action in one line, as in\n{ACTIONS}\ngot {reply[:200]!r}")
    part = found.groupdict()
    if part["done"]:
        return {"do": "done"}
    if part["goto"]:
        return {"do": "goto", "address": part["address"]}
    do, prefix = ("click", "") if part["click"] else ("type", "type_")
    number = part[prefix + "number"]
    return {
        "do": do,
        "role": part[prefix + "role"],
        "name": _unquoted(part[prefix + "name"]),
        "number": int(number) if number else None,
        **({"text": _unquoted(part["text"])} if do == "type" else {}),
    }


def _unquoted(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"expected words in quotes as JSON has them, got {text}") from None


def origin_of(address: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port; a file has no host. Raises `ValueError` if it is not the address of a page."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        return "file", "", None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected an address with http://, https:// or file://, got {address!r}")
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]


def folder_of(address: str) -> Path:
    """Return the folder of a file's address."""
    return Path(unquote(urlsplit(address).path)).resolve().parent


def permitted(address: str, start: str, origins: tuple | list) -> bool:
    """Return whether the browser may load the address."""
    try:
        asked = origin_of(address)
    except ValueError:
        return False
    if asked[0] == "file":
        return origin_of(start)[0] == "file" and folder_of(address).is_relative_to(folder_of(start))
    return asked in {origin_of(one) for one in (start, *origins)}


def first_page(task: str, start: str | None) -> str:
    """Return the start page of a task. Raises `ValueError` if it has none."""
    named = re.search(r"(?:https?|file)://[^\s<>\"']+", task)
    if start is None and named is None:
        raise ValueError('the task names no page: give it "start", or an address in its words')
    address = start or named[0].rstrip(".,;:!?)")
    origin_of(address)
    return address


class Screen:
    """Browser window: its content, and the actions in it."""

    def __init__(self, context, may_load, playwright_error) -> None:
        """`may_load(address)`: whether the address is permitted."""
        self._context, self._may_load, self._error = context, may_load, playwright_error
        self._refused = self._good = None

    @property
    def page(self):
        """The newest page, because a link may have opened one."""
        return self._context.pages[-1]

    async def start(self, address: str) -> None:
        """Open the start page. Raises `RuntimeError` if it cannot be loaded."""
        await self._context.route("**/*", self._gate)
        try:
            await (await self._context.new_page()).goto(address)
        except self._error as error:
            raise RuntimeError(
                f"{address}: the page of the task does not load ({_first_line(error)})"
            ) from None
        if problem := await self._settled():
            raise RuntimeError(f"{address}: {problem}")

    async def _gate(self, route) -> None:
        request = route.request
        if self._may_load(request.url):
            await route.continue_()
            return
        if request.is_navigation_request() and self._is_whole_page(request):
            self._refused = request.url
        await route.abort("aborted")  # the present page stays

    def _is_whole_page(self, request) -> bool:
        """Return whether the request is for a page, not for a frame."""
        try:
            return request.frame.parent_frame is None
        except self._error:  # a window has no frame while it opens
            return True

    async def execute_gui_action(self, action: dict) -> str | None:
        """Execute the action. Return an error text for the model, or None."""
        self._refused = None
        try:
            await self._do(action)
            return await self._settled()
        except ValueError as error:
            return str(error)
        except self._error as error:
            return await self._settled() or f"{action['do']}: {_first_line(error)}"

    async def _do(self, action: dict) -> None:
        if action["do"] == "goto":
            address = urljoin(self.page.url, action["address"])
            if not self._may_load(address):
                raise ValueError(f"{address} is not permitted here")
            await self.page.goto(address)
            return
        target = await self._element(action)
        if action["do"] == "click":
            await target.click()
        elif await target.evaluate("element => element.tagName") == "SELECT":
            await target.select_option(label=action["text"])
        else:
            await target.fill(action["text"])

    async def _element(self, action: dict):
        """Return the element of the action. Raises `ValueError` unless the page has it."""
        role, name, number = action["role"], action["name"], action["number"]
        words = role if name is None else f"{role} {json.dumps(name, ensure_ascii=False)}"
        found = self.page.get_by_role(
            role, **({} if name is None else {"name": name, "exact": True})
        )
        there = await found.count()
        if there == 0 or (number or 1) > there:
            raise ValueError(f"there is no {words}{f' {number}' if number else ''} on the page")
        if there > 1 and number is None:
            raise ValueError(
                f"there are {there} of {words} on the page: say which, as in {words} 2"
            )
        return found.nth((number or 1) - 1)

    async def _settled(self) -> str | None:
        """Wait until the page has loaded. If it is not permitted, go back and return an error text."""
        await asyncio.sleep(SETTLE)
        if self._refused and len(self._context.pages) > 1 and self.page.url == "about:blank":
            await self.page.close()  # the window that the refused page opened
        try:
            await self.page.wait_for_load_state("load")
        except self._error as error:
            return f"the page does not come to rest ({_first_line(error)})"
        led = self.page.url
        if self._may_load(led):
            self._good = led
            return f"{self._refused} is not permitted here" if self._refused else None
        if self._good is None:
            return "it leads to a page that is not permitted"
        await self.page.goto(self._good)
        failed = led.startswith("chrome-error:")
        where = (
            "a page that does not load or is not permitted"
            if failed
            else f"{led}, which is not permitted"
        )
        return f"this led to {where} here; you are back"

    async def get_gui_state(self) -> str:
        """Return the page as text for the model."""
        said = await self.page.locator("body").aria_snapshot()
        cut = f"\n(the first {CHARS} of {len(said)} characters)" if len(said) > CHARS else ""
        return f"address: {self.page.url}\ntitle: {await self.page.title()}\n{said[:CHARS]}{cut}"

    async def shows(self, words: str) -> bool:
        """Return whether the text is visible on the page."""
        return " ".join(words.split()) in " ".join(
            (await self.page.locator("body").inner_text()).split()
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@asynccontextmanager
async def opened(start: str, origins: tuple | list):
    """Open a `Screen` on the page `start`, in a new browser. Raises `RuntimeError`."""
    try:
        from playwright.async_api import Error, async_playwright
    except ImportError:
        raise RuntimeError(
            "playwright, which drives the browser, is not installed: `pip install 'openclaw-rl[gui]'`, then "
            "`playwright install chromium`, or set GUI_BROWSER to the path of an installed browser"
        ) from None
    hosts = {origin_of(one)[1] for one in (start, *origins)} - {""}
    rules = ", ".join(["MAP * ~NOTFOUND", *(f"EXCLUDE {host}" for host in sorted(hosts))])
    async with async_playwright() as playwright:
        browser = await _launched(playwright, Error, [f"--host-resolver-rules={rules}"])
        try:  # the rules also block redirects by a server, which routes do not see
            context = await browser.new_context(
                viewport=SIZE, accept_downloads=False, service_workers="block"
            )
            context.set_default_timeout(1000 * SECONDS)
            screen = Screen(context, lambda address: permitted(address, start, origins), Error)
            await screen.start(start)
            yield screen
        finally:
            await browser.close()


async def _launched(playwright, playwright_error, arguments: list):
    """Start the first browser that is installed. Raises `RuntimeError`."""
    named = os.environ.get("GUI_BROWSER")
    sandbox = os.environ.get("GUI_SANDBOX") != "0" and getattr(os, "geteuid", lambda: 1)() != 0
    others = [path for path in map(shutil.which, ON_PATH) if path]
    for executable in [named] if named else [None, *others]:
        try:
            return await playwright.chromium.launch(
                executable_path=executable, args=arguments, chromium_sandbox=sandbox
            )
        except playwright_error as error:
            if named is None and executable is None and "Executable doesn't exist" in str(error):
                continue
            what = (
                f"{executable} (GUI_BROWSER)" if named else executable or "playwright's own browser"
            )
            hint = " If its sandbox does not work here, set GUI_SANDBOX=0." if sandbox else ""
            raise RuntimeError(f"{what} does not start: {_first_line(error)}.{hint}") from None
    raise RuntimeError(
        "no browser found: run `playwright install chromium`, or set GUI_BROWSER=/path/to/chromium "
        f"(looked for playwright's own, and on PATH for {', '.join(ON_PATH)})"
    )


async def get_gui_reward(screen: Screen, problem: str | None, expect: str | None) -> float:
    """Return -1 for a failed action, 1 if the task is done, else 0. Write your own check of the task here."""
    if problem is not None:
        return -1.0
    return 1.0 if expect is not None and await screen.shows(expect) else 0.0


async def _step(screen: Screen, reply: str, expect: str | None) -> tuple[str | None, bool]:
    """Execute one reply. Return its error text or None, and whether the model says that it is done."""
    try:
        action = parse_gui_action(reply)
    except ValueError as error:
        return str(error), False
    if action["do"] != "done":
        return await screen.execute_gui_action(action), False
    if expect is not None and not await screen.shows(expect):
        return f"it is not done: the page does not show {expect!r}", True
    return None, True


async def gui_rollout(
    vision_model,
    task: str,
    start=None,
    expect=None,
    origins=(),
    pictures=PICTURES,
    screenshots=None,
    out=".",
) -> list[dict]:
    """Run one task. `MAX_GUI_STEPS` is a supplied global, rollout.max_turns. The next page is the reaction."""
    trajectory = []
    folder = (
        Path(out, "screenshots")
        if screenshots is True
        else Path(screenshots)
        if screenshots
        else None
    )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    start = first_page(task, start)
    async with opened(start, origins) as screen:
        if expect is not None and await screen.shows(expect):
            raise ValueError(
                f"the first page already shows {expect!r}, so it cannot show that the task is done"
            )
        prompt = f"Task: {task}\n{HOW}\n\n{await screen.get_gui_state()}"
        for step in range(MAX_GUI_STEPS):  # noqa: F821
            file = None if folder is None else folder / f"{vision_model.session}-{step}.png"
            screenshot = await screen.page.screenshot(path=file) if file or pictures else None
            action = await vision_model.generate(
                prompt, screenshot if pictures else None, max_tokens=TOKENS
            )
            problem, done = await _step(screen, action, expect)
            reward = await get_gui_reward(screen, problem, expect)
            shot = None if file is None else str(file)
            trajectory.append(
                {"screenshot": shot, "action": action, "error": problem, "reward": reward}
            )
            prompt = f"error: {problem}\n" if problem else ""
            prompt += await screen.get_gui_state()
            if done or reward > 0:
                break
        # the last step has no reaction
        await vision_model.feedback(score=int(reward) if reward else None, comment=prompt)
    return trajectory
