"""Write the lock file of CI: the versions in this environment of all that the tests need.

python -m benchmarks.ci_lock
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
EXTRAS = ("local", "demo", "dev")
HEAD = f"""\
# Versions with which the tests last passed, for CI: pip install -c requirements-ci.txt -e ".[{",".join(EXTRAS)}]"
# `make lock` writes it from the environment in .venv.
"""


def needed_versions() -> dict[str, str]:
    """Return the version of each package that the extras need, by normalised name. Local labels are left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in groups[extra])]
    pending = [Requirement(line) for line in lines]
    versions: dict[str, str] = {}
    seen = set()
    while pending:
        requirement = pending.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        installed = distribution(requirement.name)
        versions[name] = installed.version.partition("+")[0]
        for line in installed.requires or ():
            further = Requirement(line)
            places = [{"extra": extra} for extra in extras or {""}]
            if further.marker is None or any(map(further.marker.evaluate, places)):
                pending.append(further)
    return versions


def main() -> None:
    lines = [f"{name}=={number}\n" for name, number in sorted(needed_versions().items())]
    (ROOT / "requirements-ci.txt").write_text(HEAD + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
