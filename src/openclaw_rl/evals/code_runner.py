"""Run a function that a model wrote on test cases, in a separate process with limits. This is not a sandbox.

The process returns the results, and this module compares them, so printed output does not count.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

CPU_LIMIT_SECONDS = 5.0
_FENCED_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_RUNNER = """
import json, os, resource, sys
given = json.load(sys.stdin)
out = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
resource.setrlimit(resource.RLIMIT_CPU, (given["seconds"],) * 2)
resource.setrlimit(resource.RLIMIT_AS, (2**29,) * 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20,) * 2)
space = {"__name__": "reply"}
exec(compile(given["code"], "reply", "exec"), space)
got = [space[given["name"]](*arguments) for arguments in given["cases"]]
out.write(json.dumps(got))
out.flush()
"""


def extract_code(reply: str) -> str:
    """Return the concatenated fenced code blocks of a reply, or the whole reply if it has none."""
    blocks = _FENCED_CODE.findall(reply)
    return "\n".join(blocks) if blocks else reply


def failure_reason(code: str, name: str, cases: Sequence[tuple[Sequence[Any], Any]]) -> str | None:
    """Return why function `name` of `code` fails a case (arguments, result), or None if it passes all of them."""
    request = {
        "code": code,
        "name": name,
        "cases": [list(c) for c, _ in cases],
        "seconds": int(CPU_LIMIT_SECONDS),
    }
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _RUNNER],
                input=json.dumps(request),
                cwd=folder,
                env={},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=2 * CPU_LIMIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it took more than {2 * CPU_LIMIT_SECONDS:g} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"the process exited with {done.returncode}"])[
            -1
        ][:300]
    return _mismatch_reason(done.stdout, name, cases)


def _mismatch_reason(
    output: str, name: str, cases: Sequence[tuple[Sequence[Any], Any]]
) -> str | None:
    try:
        got = json.loads(output)
    except ValueError:
        return "it returned nothing"
    for (arguments, expected), result in zip(cases, got, strict=True):
        if result != expected or isinstance(result, bool) != isinstance(expected, bool):
            return f"{name}{tuple(arguments)}: expected {expected!r}, got {result!r}"
    return None
