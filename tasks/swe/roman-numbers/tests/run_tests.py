"""Check of a repository: runs the named tests of `suite/` against it. Exit status 0 if all of them pass, else 1.

    python3 -I /tests/write_result.py --run /tests/run_tests.py REPOSITORY

`tests.json` beside it has FAIL_TO_PASS and PASS_TO_PASS, lists of names as unittest takes them. The tests run here, and
the modules of the repository in another process, a new one for each test: it has neither the tests nor what they
compare with, and what it returns is compared here (`remote_code.py`). With `overlay`, the files of `suite/` that are no
programs are put into the repository.
"""

import json
import os
import shutil
import signal
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from isolation import protect_process, take_tests  # noqa: E402
from remote_code import CodeLink, Modules  # noqa: E402

SECONDS = 30


class TooLong(KeyboardInterrupt):
    """A test did not end in time. No test catches it."""


def run_test(name: str, modules: Modules, server: str, repository: str) -> tuple[bool, str]:
    """Return whether a test passes, and the last words of its failure."""
    modules.link = CodeLink(server, repository)
    result = unittest.TestResult()
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1)
    try:
        unittest.TestLoader().loadTestsFromName(name).run(result)
    except TooLong:
        return False, f"not finished within {SECONDS} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        modules.link.close()
        modules.forget()
    problems = [trace for _, trace in result.failures + result.errors]
    others = result.skipped or result.expectedFailures or result.unexpectedSuccesses
    passed = bool(result.testsRun) and not (problems or others)
    return passed, (problems or ["failed"])[0].strip().splitlines()[-1]


def put_data(files: dict[str, bytes], folder: Path) -> None:
    """Put files into a folder, in place of whatever has their names."""
    for path, content in files.items():
        target = folder / path
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def main() -> None:
    protect_process()
    repository = str(Path(sys.argv[1]).resolve())
    files = take_tests(HERE)
    names = json.loads(files["tests.json"])
    suite = {}
    for path, content in files.items():
        if path.startswith("suite/"):
            suite[path.removeprefix("suite/")] = content
    programs = {path: text for path, text in suite.items() if path.endswith(".py")}
    data = {path: text for path, text in suite.items() if path not in programs}
    put_data(data, HERE / "suite")
    if names.get("overlay"):
        put_data(data, Path(repository))
    server = (files["peer.py"] + b"\n" + files["code_server.py"]).decode()

    def has_module(name: str) -> bool:
        place = Path(repository) / name
        is_there = place.is_dir() or place.with_name(f"{name}.py").is_file()
        return is_there and name not in sys.stdlib_module_names

    modules = Modules(programs, f"{HERE}/suite", has_module)
    sys.meta_path.insert(0, modules)
    os.chdir(repository)

    def end_test(number: int, frame: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, end_test)
    passed = []
    for name in [*names["FAIL_TO_PASS"], *names["PASS_TO_PASS"]]:
        ok, words = run_test(name, modules, server, repository)
        passed.append(ok)
        if not ok:
            sys.stderr.write(f"{name}: {words}\n")
    sys.exit(not (names["FAIL_TO_PASS"] and all(passed)))


if __name__ == "__main__":
    main()
