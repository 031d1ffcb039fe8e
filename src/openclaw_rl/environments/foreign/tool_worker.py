"""Runs in a box: answers calls of tools that are Python code. The standard library only.

Argument: a file with {"modules": [code], "tools": {name: [module, function]}, "interpreter": bool}. Requests are JSON
lines on standard input, {"tool", "arguments", "seconds", "characters"}; each answer is one JSON line on standard
output, {"result"}, {"error"} or, if the modules failed, {"broken"}. `tool` may be null: whether they did is all that is
asked. The modules are loaded once: their variables stay between the calls.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys

TYPE_CHECKING = False
# `typing` takes a sixth of the start of the process.
if TYPE_CHECKING:
    from typing import Any


class CallTimeout(BaseException):
    """Raised in a call that takes too long. Code that catches every `Exception` does not catch it."""


class BoundedText(io.TextIOBase):
    """Keeps the first and the last characters of what is written."""

    def __init__(self, characters: int) -> None:
        self._first = ""
        self._last = ""
        self._half = characters // 2
        self._left_out = 0

    def write(self, text: str) -> int:
        space = self._half - len(self._first)
        self._first += text[:space]
        self._last += text[space:] if space > 0 else text
        if len(self._last) > self._half:
            self._left_out += len(self._last) - self._half
            self._last = self._last[-self._half :]
        return len(text)

    def read_kept(self) -> str:
        middle = f"\n[{self._left_out} characters left out]\n" if self._left_out else ""
        return self._first + middle + self._last


def shorten_text(text: str, characters: int) -> str:
    shortened = BoundedText(characters)
    shortened.write(text)
    return shortened.read_kept()


def run_interpreter(code: str, variables: dict[str, Any], characters: int) -> dict[str, str]:
    """Run code as an interactive interpreter does, and return what it printed."""
    # Here, because tools without an interpreter start sooner.
    import ast
    import traceback

    output = BoundedText(characters)
    failed = False
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            tree = ast.parse(code, "<code>")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<code>", "exec"), variables)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<code>", "eval"), variables)
                if value is not None:
                    output.write(f"{value!r}\n")
        except (Exception, SystemExit, KeyboardInterrupt, CallTimeout) as error:  # noqa: BLE001 - of the model's code
            failed = True
            frames = error.__traceback__.tb_next if error.__traceback__ else None
            traceback.print_exception(type(error), error, frames)
    return {"error" if failed else "result": output.read_kept()}


def run_function(function: Any, arguments: dict[str, Any], characters: int) -> dict[str, str]:
    """Return the result of a tool as text: a text as it is, anything else as JSON."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            result = function(**arguments)
            text = result if isinstance(result, str) else json.dumps(result, default=str)
        except Exception as error:  # noqa: BLE001 - the model is shown it
            return {"error": shorten_text(f"{type(error).__name__}: {error}", characters)}
    return {"result": shorten_text(text, characters)}


def load_functions(setup: dict[str, Any]) -> dict[str, Any]:
    """Execute the modules and return the functions by the name of their tool."""
    spaces = []
    for number, code in enumerate(setup["modules"]):
        space: dict[str, Any] = {"__name__": f"tools_{number}"}
        exec(compile(code, f"tools_{number}.py", "exec"), space)
        spaces.append(space)
    return {tool: spaces[module][name] for tool, (module, name) in setup["tools"].items()}


def raise_timeout(*_: object) -> None:
    raise CallTimeout("the call took too long")


def answer_request(
    request: dict[str, Any], functions: dict[str, Any], variables: dict[str, Any] | None
) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    try:
        if request["tool"] in functions:
            return run_function(
                functions[request["tool"]], request["arguments"], request["characters"]
            )
        assert variables is not None
        return run_interpreter(request["arguments"]["code"], variables, request["characters"])
    except CallTimeout as error:
        # Between two frames of the call.
        return {"error": f"CallTimeout: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def take_streams() -> tuple[io.TextIOWrapper, io.TextIOWrapper]:
    """Return the lines of requests and of answers. What the code itself reads and writes is /dev/null from now on."""
    # Which programs that the code starts do not inherit.
    requests = os.dup(0)
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    return os.fdopen(requests, encoding="utf-8"), os.fdopen(answers, "w", encoding="utf-8")


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes long to import
        setup = json.load(file)
    requests, answers = take_streams()
    signal.signal(signal.SIGALRM, raise_timeout)
    try:
        functions = load_functions(setup)
        problem = None
    except Exception as error:  # noqa: BLE001 - of the owner's code
        functions = {}
        problem = f"the code of the tools failed: {type(error).__name__}: {error}"
    variables: dict[str, Any] | None = {"__name__": "__main__"} if setup["interpreter"] else None
    for line in requests:
        request = json.loads(line)
        if problem is not None:
            answer: dict[str, Any] = {"broken": problem}
        elif request["tool"] is None:
            answer = {"result": ""}
        else:
            answer = answer_request(request, functions, variables)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
