"""Roots of task folders: built with a network, and then played without one. They need root and a network."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.environments.sources.harbor.source import HarborSource
from openclaw_rl.environments.sources.harbor.task_box import TaskBox
from openclaw_rl.environments.sources.harbor.task_folder import load_folder
from openclaw_rl.environments.types import BuildState, PlayLimits, TaskBuild, TaskFitness
from openclaw_rl.sandbox.box import CommandResult
from openclaw_rl.sandbox.box_lease import sweep_leases
from openclaw_rl.sandbox.package_settings import read_package_sources
from openclaw_rl.settings.schema_sandbox import SandboxConfig

HOSTS = ("deb.debian.org", "pypi.org")
REWARD = "/logs/verifier/reward.txt"
UVX_TEST = f"""#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh
source $HOME/.local/bin/env
uvx --with iniconfig==2.0.0 pytest -q -p no:cacheprovider /tests/test_outputs.py
if [ $? -eq 0 ]; then echo 1 >{REWARD}; else echo 0 >{REWARD}; fi
"""
DOCKERFILE = """FROM python:3.11-slim
ENV COLOUR=blue
RUN apt-get update && apt-get install -y --no-install-recommends hello && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir iniconfig==2.0.0
WORKDIR /app
COPY access.log /app/access.log
RUN <<EOF
mkdir -p /data
echo secret >/data/kept
chmod 600 /data/kept
EOF
"""
FILES = {
    "task.toml": "[environment]\nmemory_mb = 1024\n",
    "instruction.md": "Count the lines of access.log into lines.",
    "environment/Dockerfile": DOCKERFILE,
    "environment/access.log": "a\nb\nc\n",
    "tests/test.sh": UVX_TEST,
    "tests/test_outputs.py": "import iniconfig\nfrom pathlib import Path\n\n"
    "def test_lines():\n    assert Path('/app/lines').read_text().strip() == '3'\n",
    "solution/solve.sh": "#!/bin/bash\nset -e\nhello >/dev/null\npython -c 'import iniconfig'\n"
    "wc -l <access.log >lines\n",
}


def find_obstacle() -> str | None:
    if os.geteuid() != 0:
        return "roots are built by root"
    try:
        for host in HOSTS:
            socket.create_connection((host, 443), 10).close()
    except OSError as error:
        return f"no network: {error}"
    return None


@pytest.fixture(scope="module")
def roots() -> Iterator[str]:
    """A store of roots that all tests share: the programs of all roots are built once."""
    obstacle = find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    folder = tempfile.mkdtemp(prefix="roots-", dir="/tmp")
    yield folder
    shutil.rmtree(folder)


def write_task(**changes: str) -> Path:
    folder = Path(tempfile.mkdtemp(), "task")
    for name, text in {**FILES, **changes}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def source_of(folder: Path, roots: str) -> HarborSource:
    sandbox = SandboxConfig(memory=512, processes=100, disk=256, roots=roots)
    return HarborSource(top=folder, sandbox=sandbox, packages=read_package_sources(os.environ))


def build(folder: Path, roots: str) -> tuple[TaskBuild, list[str]]:
    source = source_of(folder, roots)
    steps: list[str] = []
    return asyncio.run(source.build_task(source.load_tasks()[0], steps.append)), steps


def check(folder: Path, roots: str) -> TaskFitness:
    source = source_of(folder, roots)
    scratch = tempfile.mkdtemp() + "/check"
    return asyncio.run(source.check_task(source.load_tasks()[0], scratch, PlayLimits(seconds=120)))


def run_in_root(folder: Path, roots: str, command: str) -> CommandResult:
    async def run() -> CommandResult:
        box = TaskBox(folder=load_folder(folder), sandbox=source_of(folder, roots).sandbox)
        try:
            await box.open_box()
            return await box.run_command(command, 60)
        finally:
            await box.close_box()

    return asyncio.run(run())


@pytest.mark.timeout(500)
def test_a_folder_of_a_stranger_is_built_once_and_then_fit(roots: str, public_folder: Path) -> None:
    folder = write_task()
    before = check(folder, roots)
    assert not before.fit
    assert "openclaw-rl env build" in before.reason
    result, steps = build(folder, roots)
    assert result.state is BuildState.BUILT, result.message
    assert "in place of python:3.11-slim" in result.message
    assert any("apt-get" in step for step in steps)
    assert build(folder, roots) == (
        TaskBuild(task="task", state=BuildState.PRESENT, message=result.message),
        [],
    )
    fitness = check(folder, roots)
    assert (fitness.fit, fitness.oracle, fitness.nop) == (True, 1.0, 0.0), fitness.reason
    seen = run_in_root(
        folder,
        roots,
        "cat /data/kept; echo $COLOUR; touch /usr/x /usr/local/bin/x /etc/x; touch /app/x /root/x && echo written; "
        "id -u; ls /home; getent hosts pypi.org || echo offline; grep -c ^root: /etc/passwd; cat /etc/shadow",
    )
    assert seen.stdout.decode().split()[:4] == ["secret", "blue", "written", "1000"]
    assert "offline" in seen.stdout.decode()
    assert seen.stderr.decode().count("Read-only file system") == 3
    assert not Path("/usr/bin/hello").exists() or shutil.which("hello")
    (folder / "environment" / "access.log").write_text("a\n")
    assert not check(folder, roots).fit


@pytest.mark.timeout(500)
def test_a_verifier_gets_its_own_home_where_the_task_works_in_it(
    roots: str, public_folder: Path
) -> None:
    dockerfile = DOCKERFILE.replace("/app", "/root").replace("hello", "jq")
    test = FILES["tests/test_outputs.py"].replace("/app", "/root")
    planted = (
        "mkdir -p /root/.config/uv /root/.config/pip; rm -rf /root/.cache /root/.local\n"
        "printf '[pip]\\nfind-links = [\"/root/evil\"]\\n' | tee /root/.config/uv/uv.toml /root/uv.toml\n"
        "wc -l </root/access.log >/root/lines\n"
    )
    changes = {
        "environment/Dockerfile": dockerfile,
        "tests/test_outputs.py": test,
        "solution/solve.sh": planted,
    }
    folder = write_task(**changes)
    result, _ = build(folder, roots)
    assert result.state is BuildState.BUILT, result.message
    fitness = check(folder, roots)
    assert (fitness.fit, fitness.oracle, fitness.nop) == (True, 1.0, 0.0), fitness.reason


@pytest.mark.timeout(500)
def test_a_step_that_fails_is_named_with_its_end(roots: str, public_folder: Path) -> None:
    text = "FROM debian:12\nRUN echo before && \\\n    echo no luck >&2 && exit 7\n"
    result, _ = build(write_task(**{"environment/Dockerfile": text}), roots)
    assert result.state is BuildState.FAILED
    assert "environment/Dockerfile, line 2: failed with exit status 7" in result.message
    assert "no luck" in result.message


@pytest.mark.timeout(500)
def test_a_build_sees_and_reaches_nothing_of_this_machine(roots: str, public_folder: Path) -> None:
    secret = Path(tempfile.mkdtemp(), "secret")
    secret.write_text("x")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    probe = (
        "FROM debian:12\nRUN <<EOF\n"
        f"for path in {secret} {roots} /root/.ssh /etc/ssh /etc/sudoers /proc/1/root{secret}; do\n"
        '    if [ -e "$path" ]; then echo "sees $path"; exit 1; fi\ndone\n'
        "if grep -v ':\\*:' /etc/shadow; then echo passwords; exit 1; fi\n"
        f"if curl -sS --noproxy '*' http://127.0.0.1:{port}; then echo reached; exit 1; fi\n"
        f"if curl -sSf http://localhost:{port}; then echo proxied; exit 1; fi\n"
        "for file in $(find /proc -maxdepth 4 -type f ! -path '/proc/[0-9]*' ! -path '/proc/self/*' -perm -200); do\n"
        '    if [ -w "$file" ] && ! [ -c "$file" ] && (: >>"$file") 2>/dev/null; then echo "kernel $file"; exit 1; fi\n'
        "done\n"
        "if mount -t tmpfs tmpfs /mnt; then echo mounted; exit 1; fi\n"
        "if mknod /mnt/disk b 254 0; then echo device; exit 1; fi\n"
        "if chroot / true; then echo chroot; exit 1; fi\n"
        "if unshare -U true; then echo namespaces; exit 1; fi\n"
        "rm -rf /usr/share/doc && touch /usr/bin/of-the-build\n"
        "EOF\n"
    )
    result, _ = build(write_task(**{"environment/Dockerfile": probe}), roots)
    listener.close()
    assert result.state is BuildState.BUILT, result.message
    assert Path("/usr/share/doc").is_dir()
    assert not Path("/usr/bin/of-the-build").exists()


@pytest.mark.timeout(500)
def test_a_build_that_is_killed_leaves_nothing_that_counts(roots: str, public_folder: Path) -> None:
    text = "FROM debian:12\nRUN echo begun >/begun && sleep 1000\nWORKDIR /app\n"
    folder = write_task(**{"environment/Dockerfile": text, "tests/test.sh": "#!/bin/sh\n"})
    program = (
        "import asyncio, sys\n"
        "from openclaw_rl.environments.sources.harbor.source import HarborSource\n"
        "from openclaw_rl.settings.schema_sandbox import SandboxConfig\n"
        "from pathlib import Path\n"
        f"source = HarborSource(top=Path({str(folder)!r}), sandbox=SandboxConfig(roots={roots!r}))\n"
        "asyncio.run(source.build_task(source.load_tasks()[0], lambda step: print(step, flush=True)))\n"
    )
    environment = {**os.environ, "TMPDIR": str(public_folder)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "sleep 1000" in line:
                break
        begun = [path for path in Path(roots).glob(".building-*") if path.is_dir()]
        assert begun
        process.send_signal(signal.SIGKILL)
        process.wait()
    fixed = text.replace(" && sleep 1000", "")
    (folder / "environment" / "Dockerfile").write_text(text)
    sandbox = source_of(folder, roots).sandbox
    assert TaskBox(folder=load_folder(folder), sandbox=sandbox).root is None
    (folder / "environment" / "Dockerfile").write_text(fixed)
    result, _ = build(folder, roots)
    assert result.state is BuildState.BUILT, result.message
    assert not any(path.is_dir() for path in Path(roots).glob(".building-*"))
    # The next process does this with what the killed one left of its box.
    sweep_leases()


def test_a_task_that_cannot_be_read_has_failed_alone(roots: str, public_folder: Path) -> None:
    folder = write_task()
    source = source_of(folder, roots)
    task = source.load_tasks()[0]
    shutil.rmtree(folder)
    result = asyncio.run(source.build_task(task, print))
    assert result.state is BuildState.FAILED
    assert str(folder) in result.message


def test_a_folder_that_boxes_can_have_needs_no_build(roots: str, public_folder: Path) -> None:
    test = f"#!/bin/sh\necho 1 >{REWARD}\n"
    dockerfile = "FROM debian:12\nWORKDIR /app\nRUN touch file\n"
    folder = write_task(**{"environment/Dockerfile": dockerfile, "tests/test.sh": test})
    assert build(folder, roots)[0].state is BuildState.NOT_NEEDED
