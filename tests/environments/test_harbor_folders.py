"""Task folders of Harbor: settings, Dockerfiles, digests, rewards, and the commands of replies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.sources.harbor.bash_agent import find_command
from openclaw_rl.environments.sources.harbor.dockerfile import (
    CopyStep,
    DockerfileError,
    RunStep,
    read_build_plan,
)
from openclaw_rl.environments.sources.harbor.task_box import read_rewards
from openclaw_rl.environments.sources.harbor.task_folder import digest_folder, load_tasks_below
from openclaw_rl.environments.sources.harbor.task_settings import (
    fill_variables,
    list_refusals,
    read_settings,
)
from openclaw_rl.errors import ConfigError
from openclaw_rl.sandbox.box import CommandResult


def write_task(folder: Path, settings: str = 'version = "1.0"\n', **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text(settings)
    for name, text in {"instruction.md": f"Do {folder.name}.", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "memory", "network"),
    [
        ('version = "1.0"\n[environment]\nmemory = "2G"\nallow_internet = false', 2048, False),
        (
            'schema_version = "1.4"\n[environment]\nmemory_mb = 512\nnetwork_mode = "no-network"',
            512,
            False,
        ),
        ("[environment]\ncpus = 1.5", None, True),
        ('[environment]\nmemory = "512M"\nallow_internet = true', 512, True),
    ],
)
def test_the_spellings_of_each_version(
    tmp_path: Path, text: str, memory: int | None, network: bool
) -> None:
    box = read_settings(write_task(tmp_path / "a", text) / "task.toml").environment
    assert (box.memory_mebibytes, box.allows_network) == (memory, network)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[environment", "cannot be read"),
        ('[agent]\ntimeout_sec = "soon"', "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec"),
        ('[environment]\nmemory = "much"', "environment.memory"),
        ('[metadata]\nsplit = "test"', "metadata.split: expected train or held_out"),
    ],
)
def test_settings_that_cannot_be_read_name_the_file_and_the_field(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_tasks_below(write_task(tmp_path / "a", text))
    assert "task.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "file", "words"),
    [
        ('[environment]\ndocker_image = "acme/x:1"', "a", "the image acme/x:1"),
        ('[[steps]]\nname = "one"\nhealthcheck = {command = "true"}', "a", "waits for a service"),
        ('[[steps]]\nname = "one"\n[[steps]]\nname = "one"', "a", "the same name"),
        (
            '[[steps]]\nname = "one"\n[steps.verifier]\nenvironment_mode = "separate"',
            "a",
            "an environment of its own",
        ),
        ("[environment]\ngpus = 1", "a", "a GPU"),
        ('[environment]\nos = "windows"', "a", "it is for windows"),
        ('[verifier]\nenvironment_mode = "separate"', "a", "an environment of its own"),
        ('[[environment.mcp_servers]]\nname = "x"\nurl = "http://x"', "a", "MCP servers"),
    ],
)
def test_tasks_that_need_more_than_a_box_has_are_refused_with_the_reason(
    tmp_path: Path, text: str, file: str, words: str
) -> None:
    folder = write_task(tmp_path / "t", text, **{file: "x"})
    assert words in "; ".join(list_refusals(read_settings(folder / "task.toml"), folder))


def test_a_dockerfile_is_read_as_steps_of_a_box(tmp_path: Path) -> None:
    context = (
        write_task(tmp_path / "t", **{"environment/files/a.txt": "a", "environment/tool": "t"})
        / "environment"
    )
    (context / "Dockerfile").write_text(
        "# A comment\nFROM debian:12 AS base\nARG NAME=x\nENV A=1 B=\"two words\"\nENV PATH=/app/bin:$PATH\n"
        "WORKDIR /app\nCOPY files/ ./\nCOPY --chmod=755 tool /opt/bin/\nWORKDIR src\n"
        "RUN mkdir -p /app/out && \\\n    # between\n    touch $A\nRUN [\"touch\", \"a b\"]\nCMD [\"bash\"]\n"
    )  # fmt: skip
    plan = read_build_plan(context)
    assert plan.steps == [
        CopyStep(source=context / "files", target="/app"),
        CopyStep(source=context / "tool", target="/opt/bin/tool", mode="755"),
        RunStep(command="mkdir -p /app/out &&      touch $A", cwd="/app/src", line=10),
        RunStep(command="touch 'a b'", cwd="/app/src", line=13),
    ]
    assert (plan.cwd, plan.folders) == ("/app/src", ["/app", "/opt"])
    assert plan.variables["B"] == "two words"
    assert plan.variables["PATH"].startswith("/app/bin:/usr/local/sbin:")
    assert read_build_plan(tmp_path).cwd == "/app"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM a\nFROM b", "several stages"),
        ("FROM a\nADD https://example.org/x /app/", "from the network"),
        ("FROM a\nCOPY --from=b /x /app/", "from another image"),
        ("FROM a\nCOPY missing /app/", "environment/missing does not exist"),
        ("FROM a\nCOPY ../task.toml /app/", "outside of environment/"),
        ("FROM a\nCOPY Dockerfile /etc/motd", "needs an image"),
        ("FROM a\nRUN <<EOF\nls\nEOF", "here-document"),
        ("FROM a\nONBUILD RUN ls", "ONBUILD needs a container builder"),
        ("FROM a\nCOPY files", "line 2: expected what is copied"),
        ("FROM a\nCOPY 'a b /app/", "line 2: a quotation does not end"),
        ("FROM a\nCOPY a**b /app/", "line 2: .*(is no pattern of files|does not exist)"),
        ("FROM a\nENV 1A=x", "line 2: '1A' cannot be the name of a variable"),
        ("FROM a\nRUN echo \0", "NUL byte"),
    ],
)
def test_a_dockerfile_that_needs_more_is_refused_with_its_line(
    tmp_path: Path, text: str, words: str
) -> None:
    context = write_task(tmp_path / "t", **{"environment/Dockerfile": text}) / "environment"
    with pytest.raises(DockerfileError, match=words):
        read_build_plan(context)


def test_brackets_that_are_no_list_of_texts_are_for_a_shell(tmp_path: Path) -> None:
    text = "FROM a\nRUN [ -d /app ] || true\nRUN [1, 2]\nRUN []\nCOPY [ab].txt /app/\n"
    context = (
        write_task(tmp_path / "t", **{"environment/Dockerfile": text, "environment/a.txt": "a"})
        / "environment"
    )
    plan = read_build_plan(context)
    assert [step.command for step in plan.steps if isinstance(step, RunStep)] == [
        "[ -d /app ] || true",
        "[1, 2]",
        "[]",
    ]
    assert plan.steps[-1] == CopyStep(source=context / "a.txt", target="/app/a.txt")


def test_the_digest_is_of_the_whole_folder_and_not_of_its_name(tmp_path: Path) -> None:
    one, other = (
        write_task(tmp_path / name, **{"instruction.md": "Do it.", "tests/t": "x"}) for name in "ab"
    )
    before = digest_folder(one)
    assert before == digest_folder(other)
    with pytest.raises(ConfigError, match="the same content as a"):
        load_tasks_below(tmp_path)
    (one / "tests" / "t").chmod(0o755)
    assert digest_folder(one) != before
    (other / "tests" / "more").symlink_to("t")
    assert digest_folder(other) != before
    assert [task.id for task in load_tasks_below(tmp_path)] == ["a", "b"]


def test_files_without_content_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(write_task(tmp_path / "t", **{"tests/test.sh": ""}) / "tests" / "pipe")
    with pytest.raises(ConfigError, match=r"tests/pipe: expected a file, a folder or a link"):
        load_tasks_below(tmp_path)


@pytest.mark.parametrize("best", ["nan", "inf", "1" + 400 * "0", "true"])
def test_a_best_reward_that_no_solution_can_have_is_refused(tmp_path: Path, best: str) -> None:
    write_task(tmp_path / "t", f"[metadata]\nbest_reward = {best}")
    with pytest.raises(ConfigError, match=r"metadata\.best_reward: expected a number, got"):
        load_tasks_below(tmp_path)


def test_the_split_is_of_the_task_or_of_its_digest(tmp_path: Path) -> None:
    write_task(tmp_path / "a" / "one", '[metadata]\nsplit = "held_out"')
    write_task(tmp_path / "a" / "two", "[agent]\ntimeout_sec = 5")
    tasks = load_tasks_below(tmp_path)
    assert [(task.id, task.split) for task in tasks] == [("a/one", "held_out"), ("a/two", "train")]
    assert {task.split for task in load_tasks_below(tmp_path, 1.0)} == {"held_out"}
    write_task(tmp_path / "b" / "one", '[metadata]\nbest_reward = "all"')
    with pytest.raises(
        ConfigError, match=r"b/one/task\.toml: metadata\.best_reward: expected a number, got 'all'"
    ):
        load_tasks_below(tmp_path / "b")
    with pytest.raises(ConfigError, match="no such folder"):
        load_tasks_below(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no tasks"):
        load_tasks_below(tmp_path / "empty")


def test_variables_are_filled_with_granted_values() -> None:
    assert fill_variables({"A": "x-${ONE}", "B": "${TWO:-2}"}, {"ONE": "1"}) == {
        "A": "x-1",
        "B": "2",
    }
    with pytest.raises(ConfigError, match="--env KEY"):
        fill_variables({"A": "${KEY}"}, {})
    for given in ({"A B": "x"}, {"A": "x\0"}):
        with pytest.raises(ConfigError, match="no variable can have"):
            fill_variables(given, {})


@pytest.mark.parametrize(
    ("name", "text", "reward"),
    [
        ("reward.txt", "1\n", 1.0),
        ("reward.txt", "0.25", 0.25),
        ("reward.json", '{"reward": 1, "style": 0}', 1.0),
        ("reward.json", '{"tests": 1, "style": 0}', 0.5),
        ("reward.json", "0.5", 0.5),
        ("reward.txt", "", None),
        ("reward.txt", "nan", None),
        ("reward.txt", "passed", None),
        ("reward.json", '{"reward": "1"}', None),
        ("reward.json", "{}", None),
        ("reward.json", '{"one": 1e308, "two": 1e308}', None),
        ("other.txt", "1", None),
    ],
)
def test_rewards_are_read_as_harbor_reads_them(
    tmp_path: Path, name: str, text: str, reward: float | None
) -> None:
    (tmp_path / name).write_text(text)
    outcome = read_rewards(
        tmp_path, CommandResult(exit_code=127, stdout=b"", stderr=b"uvx: not found")
    )
    assert (outcome.status, outcome.reward) == ("void" if reward is None else "done", reward)


def test_a_verifier_that_a_signal_ended_has_decided_nothing(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1")
    for status in (128 + 9, 128 + 15):
        outcome = read_rewards(
            tmp_path, CommandResult(exit_code=status, stdout=b"", stderr=b"Killed")
        )
        assert (outcome.status, outcome.reward) == ("done", 0.0)
        assert outcome.reason == f"the verifier was ended by a signal: exit status {status}: Killed"


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("ls -l", "ls -l"),
        ("$ ls -l", "ls -l"),
        ("First I look:\n\n```bash\nls -l\ncat a\n```\nThen I write.", "ls -l\ncat a"),
        ("```\nls\n```\n```\nrm a\n```", "ls"),
        ("```sh\nls", "ls"),
        ("exit", "exit"),
        ("", ""),
    ],
)
def test_the_command_of_a_reply(reply: str, command: str) -> None:
    assert find_command(reply) == command


def test_an_unknown_agent_and_no_folder_are_refused() -> None:
    request = SourceRequest(
        source="harbor", argument="tasks", agent="terminus", search_path="/usr/bin"
    )
    with pytest.raises(ConfigError, match="tools, text, plain"):
        find_source(request).make_runner(request)
    request = SourceRequest(source="harbor", search_path="/usr/bin")
    with pytest.raises(ConfigError, match="harbor:tasks/terminal"):
        find_source(request).make_source(request)
