"""Compose files of task folders: one service is played, and what a box does not have is refused with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.environments.sources.harbor.compose_file import ComposeError, read_build_files
from openclaw_rl.environments.sources.harbor.task_settings import list_refusals, read_settings

HARBOR_SERVICE = """
services:
  main:
    build:
      context: ${CONTEXT_DIR}
      args: {VERSION: 3}
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    working_dir: /srv/app
    environment:
      - TEST_DIR=${TEST_DIR}
      - COLOUR=blue
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
    deploy: {resources: {limits: {cpus: "1"}}}
"""


def write_compose(folder: Path, text: str) -> Path:
    environment = folder / "environment"
    environment.mkdir(parents=True)
    (environment / "Dockerfile").write_text("FROM debian:12\n")
    (environment / "docker-compose.yaml").write_text(text)
    return environment


def test_the_service_of_a_file_with_one_is_played(tmp_path: Path) -> None:
    environment = write_compose(tmp_path, HARBOR_SERVICE)
    files = read_build_files(environment)
    assert (files.context, files.dockerfile) == (environment, "Dockerfile")
    assert dict(files.arguments) == {"VERSION": "3"}
    assert dict(files.variables) == {"COLOUR": "blue"}
    assert files.cwd == "/srv/app"
    (tmp_path / "task.toml").write_text("")
    assert list_refusals(read_settings(tmp_path / "task.toml"), tmp_path) == []


def test_the_dockerfile_may_have_another_name_and_folder(tmp_path: Path) -> None:
    text = "services: {app: {build: {context: image, dockerfile: Dockerfile.dev}}}"
    environment = write_compose(tmp_path, text)
    (environment / "image").mkdir()
    files = read_build_files(environment)
    assert (files.context, files.dockerfile) == (environment / "image", "Dockerfile.dev")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "has no services"),
        ("services: {main: {}, db: {image: postgres}}", r"several containers \(.*main, db\)"),
        ("services: {main: {privileged: true}}", "does not have: privileged"),
        ("services: {main: {network_mode: host}}", "does not have: network_mode"),
        ("services: {main: {volumes: ['/:/host']}}", "needs the volume /:/host"),
        ("services: {main: {build: {context: ../..}}}", "no folder below environment/"),
        ("services: {main: {build: {target: dev}}}", "build needs .*: target"),
        ("services: {main: {environment: 3}}", "expected variables, got 3"),
        ("services: [", "cannot be read"),
    ],
)
def test_what_a_box_does_not_have_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ComposeError, match=words):
        read_build_files(write_compose(tmp_path, text))
    (tmp_path / "task.toml").write_text("")
    assert list_refusals(read_settings(tmp_path / "task.toml"), tmp_path)


@pytest.mark.parametrize("dockerfile", ["../Dockerfile", "/etc/hostname", "link"])
def test_a_dockerfile_elsewhere_is_refused(tmp_path: Path, dockerfile: str) -> None:
    text = f"services: {{app: {{build: {{context: ., dockerfile: {dockerfile}}}}}}}"
    environment = write_compose(tmp_path, text)
    (tmp_path / "Dockerfile").write_text("FROM debian:12\n")
    (environment / "link").symlink_to(tmp_path / "Dockerfile")
    with pytest.raises(ComposeError, match=r"build\.dockerfile .* is no file below environment/"):
        read_build_files(environment)


@pytest.mark.parametrize("name", ["Dockerfile", "docker-compose.yaml"])
def test_a_linked_file_of_the_build_is_refused(tmp_path: Path, name: str) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    (tmp_path / "elsewhere").write_text("FROM debian:12\n")
    (environment / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ComposeError, match=f"{name} is no file below environment/"):
        read_build_files(environment)
    (tmp_path / "task.toml").write_text("")
    assert list_refusals(read_settings(tmp_path / "task.toml"), tmp_path) == [
        f"{name} is no file below environment/"
    ]
