"""Runs the lines of shell blocks: the real programs, in a real clone, up to the point where something is needed.

`OPENCLAW_CHECK` makes our commands say what speaks against their start, and start nothing; `PIP_DRY_RUN` is the same of
pip. Placeholders of a reader (`/path/to/...`) stand for folders that exist. No network is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.external.recipes.running import ROOT, talks
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.sockets import free_port

PUBLIC = "https://github.com/Gen-Verse/OpenClaw-RL"
PLUGINS = ROOT / "examples" / "plugins"
MODELS = (
    "qwen3-7b",
    "base/model",
    "your/model",
    "your/model/checkpoint",
    "tokenizer",
    "checkpoint",
)
JUDGES = ("judge-model", "judge/model")
REWARD_MODELS = ("prm/model", "prm/checkpoint")
OWN_FILES = {
    "my_method/custom_loss.py": "custom_loss.py",
    "my_method/custom_rollout.py": "rollout_opd.py",
    "my_method/custom_generate.py": "custom_generate.py",
    "my_method/custom_rm.py": "custom_rm.py",
    "my-new-method/custom_loss.py": "custom_loss.py",
    "rollout_binary.py": "rollout_opd.py",
    "process_reward_model.py": "custom_reward.py",
}
"""Files that a reader of the descriptions writes -> the plug-in that stands for each."""
SHELL_VARIABLES = ("PWD", "OLDPWD", "SHLVL", "_", "WALK", "PATH", "code")
_LIMIT_SECONDS = 280.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """What a line did. `changed`: variables that it has set."""

    line: str
    code: int
    output: str
    errors: str
    changed: Mapping[str, str]

    @property
    def settings(self) -> dict[str, object]:
        """The settings that a checked start printed."""
        return settings_in(self.output)


def settings_in(output: str) -> dict[str, object]:
    rows = [row for row in output.splitlines() if re.match(r"[a-z_]+(\.[a-z_]+)+: |home: ", row)]
    return dict(yaml.safe_load("\n".join(rows)) or {})


def publish_repository(folder: Path) -> Path:
    """Commit the tracked files, as they are in the working tree, to a repository to clone from. Return its address."""
    source = folder / "hub" / "OpenClaw-RL"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        if file.is_symlink() or file.exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, source / name, follow_symlinks=False)
    who = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "As it is"]):
        subprocess.run(["git", *words], cwd=source, check=True, capture_output=True)
    (folder / "hub" / "OpenClaw-RL.git").symlink_to(source)
    return source


def make_placeholders(folder: Path) -> None:
    """Make what `/path/to/...` of the descriptions stands for, below `folder`."""
    starter = ASSETS / "starter"
    for name in sorted((*MODELS, *JUDGES)):
        shutil.copytree(starter, folder / name, dirs_exist_ok=True)
    config = AutoConfig.from_pretrained(starter, num_labels=2)
    classifier = AutoModelForSequenceClassification.from_config(config)
    for name in REWARD_MODELS:
        classifier.save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(starter).save_pretrained(folder / name)
    data = folder / "conversation" / "data"
    data.mkdir(parents=True)
    talks(data / "talks.jsonl")
    (folder / "checkpoints").mkdir()
    (folder / "swe-bench" / "repos").mkdir(parents=True)
    instances = folder / "swe-bench" / "swe-bench-lite.jsonl"
    fields = ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement")
    row = dict.fromkeys(fields, "x") | {"FAIL_TO_PASS": "[]", "PASS_TO_PASS": "[]"}
    row |= {"instance_id": "a__a-1", "repo": "a/a", "base_commit": "abcdef1"}
    instances.write_text(json.dumps(row) + "\n", encoding="utf-8")


class LineRunner:
    """Runs blocks in clones of the repository, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = publish_repository(folder)
        self.paths = folder / "path" / "to"
        self.paths.mkdir(parents=True)
        make_placeholders(self.paths)
        self.port = str(free_port())
        git = folder / "gitconfig"
        git.write_text(f'[url "{self.source}"]\n\tinsteadOf = {PUBLIC}\n', encoding="utf-8")
        self.environ = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "GIT_CONFIG_GLOBAL": str(git),
            "OPENCLAW_CHECK": "true",
            "OPENCLAW_PORT": self.port,
            "HF_HUB_OFFLINE": "1",
            "PIP_DRY_RUN": "1",
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "npm_config_offline": "true",
        }
        self.environ |= {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ}

    def clone(self, name: str, lines: Sequence[str]) -> Path:
        """Return a new clone, in a folder of its own, with the files of a reader that the lines name."""
        clone = self.folder / name / "OpenClaw-RL"
        clone.parent.mkdir()
        subprocess.run(
            ["git", "clone", "-q", PUBLIC, str(clone)], env=self.environ, check=True, timeout=120
        )
        text = "\n".join(lines)
        for file, plugin in OWN_FILES.items():
            if file not in text:
                continue
            (clone / file).parent.mkdir(exist_ok=True)
            shutil.copy(PLUGINS / plugin, clone / file)
        return clone

    def fill_in(self, text: str) -> str:
        """Return a line with the placeholders and the port of this runner."""
        return text.replace("/path/to/", f"{self.paths}/").replace("8000", self.port)

    def run_lines(
        self, name: str, lines: Sequence[str], *, folder: Path, given: Mapping[str, str]
    ) -> list[LineResult]:
        """Run the lines in one bash, from `folder`. `given`: variables that it has."""
        walk = self.folder / f"{name}.walk"
        walk.mkdir()
        script = ["set -a", 'env -0 > "$WALK/env.start"']
        for number, line in enumerate(lines):
            here = f'"$WALK/%s.{number}"'
            # With `||`, a line that fails does not end the block, also after `set -e`.
            script += [
                "code=0",
                "{",
                line,
                f"}} > {here % 'output'} 2> {here % 'errors'} || code=$?",
            ]
            script += [f"echo $code > {here % 'code'}", f"env -0 > {here % 'env'}"]
        subprocess.run(
            ["bash", "-c", "\n".join(script)],
            cwd=folder,
            env=self.environ | dict(given) | {"WALK": str(walk)},
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=_LIMIT_SECONDS,
        )
        return list(_read_results(walk, lines))

    def run_command(
        self, words: Sequence[str], *, folder: Path, given: Mapping[str, str]
    ) -> LineResult:
        done = subprocess.run(
            list(words),
            cwd=folder,
            env=self.environ | dict(given),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=_LIMIT_SECONDS,
        )
        return LineResult(
            line=" ".join(words),
            code=done.returncode,
            output=done.stdout,
            errors=done.stderr,
            changed={},
        )


def _read_variables(file: Path) -> dict[str, str]:
    rows = file.read_text(encoding="utf-8").split("\0")
    variables = dict(row.split("=", 1) for row in rows if row)
    return {name: value for name, value in variables.items() if name not in SHELL_VARIABLES}


def _read_results(walk: Path, lines: Sequence[str]) -> Iterator[LineResult]:
    before = _read_variables(walk / "env.start")
    for number, line in enumerate(lines):
        after = _read_variables(walk / f"env.{number}")
        # Also one that keeps its value: `export KEY=$KEY`.
        exported = re.findall(r"^export (\w+)=", line, re.MULTILINE)
        changed = {
            name: value
            for name, value in after.items()
            if before.get(name) != value or name in exported
        }
        yield LineResult(
            line=line,
            code=int((walk / f"code.{number}").read_text()),
            output=(walk / f"output.{number}").read_text(encoding="utf-8", errors="replace"),
            errors=(walk / f"errors.{number}").read_text(encoding="utf-8", errors="replace"),
            changed=changed,
        )
        before = after
