"""`openclaw-rl evaluate lm-eval` and `evaluate inspect`: the real programs score two versions of a running gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.external.clients.conftest import Talk
from tests.serve.conftest import KEY

from openclaw_rl.common.gateway_address import GatewayAddress, publish_address
from openclaw_rl.supervisor.home_folder import lock_home

CAPITALS = {"France": "Paris", "Italy": "Rome"}
LM_EVAL_TASK = """task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "The capital of {{{{country}}}} is"
doc_to_target: "{{{{city}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8}}
metric_list: [{{metric: exact_match}}]
"""
INSPECT_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match

@task
def capitals():
    samples = [Sample(input=f"The capital of {{c}} is", target=t) for c, t in {capitals}.items()]
    return Task(dataset=samples, scorer=match())
"""


@pytest.fixture
def home(talk: Talk) -> Iterator[Path]:
    """A home on which a system runs; its version 1 knows the capitals, and version 0 does not."""
    site = talk.site
    site.publish(site.config.policies_dir)
    renderer = site.renderer

    def reply(prompt: Sequence[int], version: int) -> list[int]:
        asked = renderer.detokenizer.new_stream().push(list(prompt))
        city = next(
            (
                city
                for country, city in CAPITALS.items()
                if country in asked.rpartition("capital of")[2]
            ),
            "?",
        )
        return site.script.say(city if version == 1 else "Nobody knows.")

    site.engine.reply = reply
    (site.config.home_dir / "api_key").write_text(KEY + "\n")
    (site.config.home_dir / "api_key").chmod(0o600)
    address = GatewayAddress(
        url=site.url, model="openclaw", model_path="starter", key="file", pid=os.getpid()
    )
    with lock_home(site.config), publish_address(site.config.home_dir, address):
        yield site.config.home_dir


def evaluate(*words: str, home: Path) -> str:
    """Run the command; it finds the program beside this interpreter. Returns what it printed."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "evaluate",
        words[0],
        "--home",
        str(home),
        *words[1:],
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_side_traffic(talk: Talk) -> None:
    """Each request was recorded as side traffic: nothing is trained on it."""
    rows = talk.collected()
    assert len(rows) >= 2 * len(CAPITALS)
    assert all("side traffic" in (turn.reason or "") for _, turn, _ in rows)


def test_lm_eval_scores_the_base_and_the_head(talk: Talk, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = folder / "capitals.jsonl"
    data.write_text(
        "".join(json.dumps({"country": c, "city": t}) + "\n" for c, t in CAPITALS.items())
    )
    (folder / "capitals.yaml").write_text(LM_EVAL_TASK.format(data=data))
    scores = {}
    for version in ("0", "head"):
        out = tmp_path / version
        more = ("--", "--include_path", str(folder))
        shown = evaluate(
            "lm-eval",
            "--tasks",
            "capitals",
            "--policy",
            version,
            "--out",
            str(out),
            *more,
            home=home,
        )
        assert "exact_match" in shown, "the program's table is printed"
        (file,) = out.rglob("results_*.json")
        scores[version] = json.loads(file.read_text())["results"]["capitals"]["exact_match,none"]
    assert scores == {"0": 0.0, "head": 1.0}
    check_side_traffic(talk)


def test_inspect_scores_the_base_and_the_head(talk: Talk, home: Path, tmp_path: Path) -> None:
    from inspect_ai.log import list_eval_logs, read_eval_log

    task = tmp_path / "capitals.py"
    task.write_text(INSPECT_TASK.format(capitals=CAPITALS))
    scores = {}
    for version in ("0", "head"):
        out = tmp_path / version
        shown = evaluate("inspect", str(task), "--policy", version, "--out", str(out), home=home)
        assert "accuracy" in shown, "the program's table is printed"
        (log,) = list_eval_logs(str(out))
        found = read_eval_log(log)
        assert found.status == "success"
        assert found.results is not None
        scores[version] = found.results.scores[0].metrics["accuracy"].value
    assert scores == {"0": 0.0, "head": 1.0}
    check_side_traffic(talk)
