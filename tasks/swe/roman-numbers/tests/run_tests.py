"""Check of a repository: runs the named tests of `suite/` against it. Exit status 0 if all of them pass, else 1.

    python3 -I /tests/write_result.py python3 -I /tests/run_tests.py REPOSITORY

`tests.json` beside it has FAIL_TO_PASS and PASS_TO_PASS, lists of names as unittest takes them. With `overlay`, the
files of `suite/` are first put into the repository. Each test is a process of its own. It proves that it passed with a
word that it read before the repository was imported, so that code that ends the process, or prints what a test prints,
proves nothing. The standard library comes before the repository on the path.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

SECONDS = 30
HERE = Path(__file__).parent
CHILD = """
import os, sys, unittest

def run_test(name, suite, repository):
    word = sys.stdin.read()
    if suite:
        sys.path.insert(0, suite)
    sys.path.append(repository)
    os.chdir(repository)
    kinds = (unittest.TestCase, unittest.TestResult, unittest.TestSuite, unittest.TestLoader)
    before = [dict(vars(kind)) for kind in kinds]
    result = unittest.TestResult()
    unittest.TestLoader.loadTestsFromName(unittest.TestLoader(), name).run(result)
    for _, trace in result.failures + result.errors:
        print(trace, file=sys.stderr)
    same = [dict(vars(kind)) for kind in kinds] == before
    if same and result.testsRun and not (result.failures or result.errors or result.skipped
                                         or result.expectedFailures or result.unexpectedSuccesses):
        os.write(3, word.encode())

run_test(*sys.argv[1:])
"""


def passes(name: str, suite: str, repository: str) -> bool:
    """Return whether a test passes. `suite`: folder that comes first on the path; empty for none."""
    word = secrets.token_hex(16)
    reader, writer = os.pipe()
    # As the test knows it.
    os.dup2(writer, 3)
    command = [sys.executable, "-I", "-B", "-c", CHILD, name, suite, repository]
    try:
        done = subprocess.run(
            command, input=word, text=True, capture_output=True, timeout=SECONDS, pass_fds=(3,)
        )
        last = done.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired:
        last = [f"not finished within {SECONDS} s"]
    os.set_blocking(reader, False)
    os.close(writer)
    try:
        proved = os.read(reader, 100) == word.encode()
    except BlockingIOError:
        proved = False
    os.close(reader)
    if not proved:
        sys.stderr.write(f"{name}: {' '.join(last) or 'failed'}\n")
    return proved


def put_tests(repository: str) -> None:
    """Put the files of the suite into the repository, in place of whatever has their names."""
    for source in sorted((HERE / "suite").rglob("*")):
        target = Path(repository) / source.relative_to(HERE / "suite")
        if target.is_symlink() or (source.is_dir() and target.is_file()):
            target.unlink()
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copyfile(source, target)


def main() -> None:
    # Taken, so that no pipe gets this number.
    os.dup2(os.open(os.devnull, os.O_RDWR), 3)
    names = json.loads((HERE / "tests.json").read_text())
    suite = str(HERE / "suite")
    repository = sys.argv[1]
    if names.get("overlay"):
        put_tests(repository)
        suite = ""
    kinds = ("FAIL_TO_PASS", "PASS_TO_PASS")
    outcomes = {kind: [passes(name, suite, repository) for name in names[kind]] for kind in kinds}
    sys.exit(not (outcomes["FAIL_TO_PASS"] and all(map(all, outcomes.values()))))


if __name__ == "__main__":
    main()
