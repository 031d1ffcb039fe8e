"""The script is run on folders that the model has not seen; only its output and files count."""

import sys
from pathlib import Path

sys.path.insert(0, "/tests")

from isolation import protect_process, run_code, take_tests  # noqa: E402

SECONDS = 10
FILES = {
    "plain": "1\n",
    "with space": "2\n",
    ".hidden": "3\n",
    "one two/three/deep file": "4\n",
}


def read_files(folder: Path) -> dict[str, str]:
    """Return the contents of all plain files, by their paths in the folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def main() -> None:
    protect_process()
    take_tests(Path("/tests"))
    work = Path("/tmp/work")
    work.mkdir()
    for name, text in FILES.items():
        path = work / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (work / "empty").mkdir()

    def back_up(source: str, target: str) -> tuple[bool, str]:
        command = ["sh", "/app/backup.sh", str(work / source), str(work / target)]
        code, output, _ = run_code(command, SECONDS, folder=str(work))
        return code == 0, output.decode("utf-8", "replace").rstrip("\n")

    assert back_up("in", "out") == (True, "copied 4 files")
    assert read_files(work / "in") == FILES
    assert read_files(work / "out") == FILES
    assert back_up("empty", "out 2/of empty") == (True, "copied 0 files")
    assert (work / "out 2/of empty").is_dir()
    assert back_up("missing", "out3") == (False, "")
    assert not (work / "out3").exists()


if __name__ == "__main__":
    main()
