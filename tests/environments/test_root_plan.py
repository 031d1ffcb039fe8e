"""Dockerfiles as builds of whole roots, and the base images that they begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.environments.sources.harbor.base_images import read_image
from openclaw_rl.environments.sources.harbor.compose_file import BuildFiles
from openclaw_rl.environments.sources.harbor.dockerfile import DockerfileError
from openclaw_rl.environments.sources.harbor.root_plan import (
    RootCopy,
    RootPlan,
    RootRun,
    read_root_plan,
)


def read(folder: Path, text: str, **arguments: str) -> RootPlan:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(text)
    return read_root_plan(BuildFiles(context=folder, arguments=arguments))


def commands(plan: RootPlan) -> list[str]:
    return [step.command for step in plan.steps if isinstance(step, RootRun) and step.shown]


def test_commands_run_as_a_shell_would_run_them(tmp_path: Path) -> None:
    text = (
        "FROM --platform=linux/amd64 python:3.12-slim AS base\n"
        "RUN apt-get update && \\\n    # between\n    apt-get install -y jq\n"
        'RUN ["touch", "a b"]\n'
        "RUN --mount=type=cache,target=/root/.cache pip install x\n"
        'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\n'
        "RUN false | true\n"
    )
    plan = read(tmp_path, text)
    assert plan.image == "python:3.12-slim"
    assert commands(plan) == [
        "/bin/sh -c 'apt-get update &&      apt-get install -y jq'",
        "touch 'a b'",
        "/bin/sh -c 'pip install x'",
        "/bin/bash -o pipefail -c 'false | true'",
    ]


def test_here_documents_are_scripts_input_or_files(tmp_path: Path) -> None:
    text = (
        "FROM debian:12\n"
        "RUN <<EOF\n# kept\necho one\n\necho two\nEOF\n"
        "RUN cat <<'END' >/etc/motd\nhello $USER\nEND\n"
        "COPY <<-EOF /app/note.txt\n\ttext\n\tEOF\n"
        "RUN true\n"
    )
    plan = read(tmp_path, text)
    assert commands(plan) == [
        "/bin/sh -c '# kept\necho one\n\necho two\n'",
        "/bin/sh -c 'cat <<'\"'\"'END'\"'\"' >/etc/motd\nhello $USER\nEND'",
        "/bin/sh -c true",
    ]
    copies = [step for step in plan.steps if isinstance(step, RootCopy)]
    assert [(copy.target, copy.text) for copy in copies] == [("/app/note.txt", "text\n")]


def test_variables_are_those_of_their_line(tmp_path: Path) -> None:
    text = (
        "ARG TAG=3.11\nFROM python:${TAG}\nARG MODE=fast\nENV A=1\nRUN echo $A\n"
        "ENV A=2 PATH=/opt/venv/bin:$PATH\nWORKDIR /srv/app\nRUN echo $A\n"
    )
    plan = read(tmp_path, text, TAG="3.13", MODE="slow", OTHER="x")
    assert plan.image == "python:3.13"
    first, second = (step for step in plan.steps if isinstance(step, RootRun) and step.shown)
    assert (first.variables["A"], second.variables["A"]) == ("1", "2")
    assert first.variables["MODE"] == "slow"
    assert "OTHER" not in second.variables
    assert (first.cwd, second.cwd) == ("/", "/srv/app")
    assert plan.variables["PATH"].startswith("/opt/venv/bin:/usr/local/sbin:")
    assert plan.folders == ["/srv/app"]


def test_files_come_from_the_context_the_network_or_the_image_of_uv(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    text = (
        "FROM ubuntu:24.04\nCOPY --from=ghcr.io/astral-sh/uv:0.9 /uv /uvx /bin/\n"
        "ADD https://example.org/x.tar.gz /opt/x/\nCOPY data /data\nCOPY data/a.txt /app/\nCOPY data/a.txt /etc/motd\n"
    )
    plan = read(tmp_path, text)
    copies = [step for step in plan.steps if isinstance(step, RootCopy)]
    assert [(copy.target, copy.into) for copy in copies] == [
        ("/data", False),
        ("/app", True),
        ("/etc/motd", False),
    ]
    runs = [step.command for step in plan.steps if isinstance(step, RootRun)]
    assert 'cp -L "$PROGRAMS"/uv "$PROGRAMS"/uvx /bin/' in runs[0]
    assert "curl -fsSL -o /opt/x/x.tar.gz https://example.org/x.tar.gz" in runs[1]
    assert plan.folders == ["/opt/x", "/data", "/app"]


def test_folders_of_applications_and_of_the_home_are_carried(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    text = "FROM a\nWORKDIR /usr/src/app/server\nCOPY one /usr/local/bin/\nCOPY one /root/.config/pip/pip.conf\n"
    plan = read(tmp_path, text)
    assert (plan.cwd, plan.folders) == ("/usr/src/app/server", ["/usr/src/app"])
    assert read(tmp_path, text + "COPY one /root/one\n").folders == ["/usr/src/app", "/root"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM a AS one\nRUN true\nFROM b\n", "line 3: several stages"),
        ("FROM a\nCOPY --from=other /x /y\n", "line 2: it copies from another image"),
        ("RUN true\n", "line 1: expected FROM first, got RUN"),
        ("FROM a\nONBUILD RUN ls\n", "ONBUILD needs a container builder"),
        ("FROM a\nCOPY missing /app/\n", "environment/missing does not exist"),
        ("FROM a\nCOPY ../secret /app/\n", "(is outside of|does not exist)"),
        ("FROM a\nCOPY one\n", "line 2: expected what is copied"),
        ("FROM a\nWORKDIR /usr/src\n", "the working folder /usr/src is one of the system"),
        ("FROM a\nWORKDIR /etc/nginx\n", "the working folder /etc/nginx is one of the system"),
        ("FROM a\nWORKDIR /root/.config\n", r"/root/\.config is one of the system or hidden"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_line(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(DockerfileError, match=words):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("reference", "name", "python", "is_plain"),
    [
        ("ubuntu:24.04", "ubuntu", None, True),
        ("public.ecr.aws/docker/library/python:3.13-slim@sha256:00", "python", "3.13", False),
        ("localhost:5000/library/debian", "debian", None, True),
        ("ghcr.io/astral-sh/uv:python3.12-bookworm-slim", "uv", "3.12", False),
        ("node:20-slim", "node", None, False),
        ("pytorch/pytorch:2.6.0-cuda12.4", "pytorch", None, False),
    ],
)
def test_the_parts_of_a_reference(
    reference: str, name: str, python: str | None, is_plain: bool
) -> None:
    image = read_image(reference)
    assert (image.name, image.python, image.is_plain) == (name, python, is_plain)
