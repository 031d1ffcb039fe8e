"""The script is run on files that the model has not seen; only its output counts."""

import sys
from pathlib import Path

sys.path.insert(0, "/tests")

from isolation import protect_process, run_code, take_tests  # noqa: E402

SECONDS = 10
VALUES = "# c\n\nA=1\nB=x&y\\z/=q\nC={{A}}\nA=two words \nE=\n"
TEMPLATE = "A={{A}}|{{B}}{{B}}\n\n{{C}} {{lower}} {A} {{{A}}} {{ A }}{{E}}\n#{{A}}\n"
EXAMPLE = "Hello Ann & Bo,\nyour files are in /srv/a=b. {{lower}} { }"


def main() -> None:
    protect_process()
    expected = take_tests(Path("/tests"))["expected.txt"]
    work = Path("/tmp/work")
    work.mkdir()
    (work / "values").write_text(VALUES)

    def render(values: str, template: str) -> tuple[int | None, bytes, bytes]:
        return run_code(["sh", "/app/render.sh", values, template], SECONDS, folder=str(work))

    (work / "template").write_text(TEMPLATE)
    code, output, _ = render("values", "template")
    assert code == 0
    assert output == expected
    (work / "template").write_text("fine\n{{A}} {{NO_1}} {{NO_2}}\n")
    code, output, errors = render("values", "template")
    assert code != 0
    assert (output, errors.decode("utf-8", "replace").rstrip("\n")) == (b"", "missing NO_1")
    code, output, _ = render("/app/example/values", "/app/example/template")
    assert code == 0
    assert output.decode("utf-8", "replace").rstrip("\n") == EXAMPLE


if __name__ == "__main__":
    main()
