"""The script is run on files that the model has not seen; only what it leaves counts."""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, "/tests")

from isolation import protect_process, run_code, take_tests  # noqa: E402

SECONDS = 10
NUMBERED = ("1", "2", "4", "10", "12", "old", "1.gz", "01")


def show(folder: Path) -> list[str]:
    """Return the plain files of the folder with their contents."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [f"{path.relative_to(folder)}={path.read_text().rstrip()}" for path in files]


def main() -> None:
    protect_process()
    tests = take_tests(Path("/tests"))
    first = tests["first.txt"].decode().splitlines()
    second = tests["second.txt"].decode().splitlines()
    folder = Path("/tmp/work/in there")
    folder.mkdir(parents=True)
    log = folder / "a b.log"

    def rotate(count: str) -> bool:
        return run_code(["sh", "/app/rotate.sh", str(log), count], SECONDS)[0] == 0

    for suffix in NUMBERED:
        log.with_name(f"a b.log.{suffix}").write_text(f"{suffix}\n")
    log.write_text("new\n")
    log.chmod(0o640)
    before = show(folder)
    for wrong in ("0", "2x", ""):
        assert not rotate(wrong)
    assert show(folder) == before
    for _ in range(2):
        assert rotate("11")
        assert show(folder) == first
        assert log.stat().st_mode & 0o777 == 0o640
    log.write_text("newer\n")
    assert rotate("2")
    assert show(folder) == second
    log.unlink()
    assert not rotate("2")
    assert not log.exists()
    shutil.rmtree(folder.parent)


if __name__ == "__main__":
    main()
