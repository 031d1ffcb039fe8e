"""A desktop under Xvfb with one window, as an MCP server with tools for mouse, keyboard and screen.

    python3 desktop_server.py PROGRAM.py

It needs Xvfb, xdotool and scrot on PATH, and a Python with the packages `mcp` and `tkinter`. Each connection is a
desktop of its own, which ends with it.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Image
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp import Image

WIDTH, HEIGHT = 640, 480
PROGRAMS = ("Xvfb", "xdotool", "scrot")
SETTLE_SECONDS = 0.2  # until the window has seen the mouse and the keys


class Desktop:
    """A screen, and the program in its window."""

    def __init__(self, display: str, program: str) -> None:
        self._environment = os.environ | {"DISPLAY": display}
        pipe, words = subprocess.PIPE, [sys.executable, program]
        self.app = subprocess.Popen(words, stdin=pipe, stdout=pipe, env=self._environment, text=True)
        self.read_widgets()

    def run_program(self, *words: str) -> None:
        """Run a program on the screen. Raises `subprocess.SubprocessError`."""
        subprocess.run(words, env=self._environment, check=True, timeout=20, stdout=subprocess.DEVNULL)

    def read_widgets(self) -> list[dict[str, object]]:
        """Return what the program says of its widgets."""
        assert self.app.stdin is not None
        assert self.app.stdout is not None
        self.app.stdin.write("\n")
        self.app.stdin.flush()
        line = self.app.stdout.readline()
        if not line:
            raise RuntimeError("the program of the desktop has ended")
        return list(json.loads(line))

    def act(self, *words: str) -> str:
        """Use mouse or keyboard, and return the status line that the window then has."""
        self.run_program("xdotool", *words)
        time.sleep(SETTLE_SECONDS)
        status = next(widget["state"] for widget in self.read_widgets() if widget["role"] == "status")
        return f"Done. Status line: {status}"


@contextlib.contextmanager
def open_desktop(program: str) -> Iterator[Desktop]:
    """Start a screen on a free display, and the program in Python; end both afterwards."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        sys.exit(f"not on PATH: {', '.join(missing)}. On Debian: apt install xvfb xdotool scrot")
    reader, writer = os.pipe()
    screen = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writer), "-screen", "0", f"{WIDTH}x{HEIGHT}x24", "-nolisten", "tcp"],
        pass_fds=(writer,),
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    try:
        with os.fdopen(reader) as numbers:
            number = numbers.readline().strip()
        if not number:
            sys.exit(f"Xvfb ended with status {screen.wait()}")
        desktop = Desktop(f":{number}", program)
        try:
            yield desktop
        finally:
            desktop.app.kill()
            desktop.app.wait()
    finally:
        screen.terminate()
        screen.wait()


def make_server(desktop: Desktop) -> MCPServer:
    server = MCPServer("desktop")

    @server.tool()
    def screenshot() -> Image:
        """The screen as an image of 640 x 480 pixels."""
        file = Path(os.environ.get("TMPDIR", "/tmp"), f"screen-{os.getpid()}.png")
        desktop.run_program("scrot", "--overwrite", str(file))
        return Image(data=file.read_bytes(), format="png")

    @server.tool()
    def read_screen() -> str:
        """The widgets of the window as text: role, name, the middle in pixels, and state."""
        return "\n".join(json.dumps(widget) for widget in desktop.read_widgets())

    @server.tool()
    def click(x: int, y: int) -> str:
        """Click with the left button at a point of the screen."""
        return desktop.act("mousemove", str(x), str(y), "click", "1")

    @server.tool()
    def type_text(text: str) -> str:
        """Type a text into the field that was clicked last."""
        return desktop.act("type", "--delay", "5", "--", text)

    @server.tool()
    def press_key(key: str) -> str:
        """Press a key or a combination, by its X name: Return, Tab, BackSpace, ctrl+a."""
        return desktop.act("key", "--", key)

    return server


if __name__ == "__main__":
    with open_desktop(sys.argv[1]) as opened:
        make_server(opened).run()
