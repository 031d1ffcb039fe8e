"""mini-swe-agent, unmodified, with its own model class and shell."""

from __future__ import annotations

from pathlib import Path

from tests.external.clients.conftest import Talk, call
from tests.serve.conftest import KEY

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def test_a_task_done_in_a_shell(talk: Talk, tmp_path: Path) -> None:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    work = tmp_path / "work"
    work.mkdir()
    talk.says(
        "I write the file.\n"
        + call("bash", '{"command": "echo hello > greeting.txt && wc -c greeting.txt"}'),
        call("bash", '{"command": "cat greeting.txt"}')
        + "\n"
        + call("bash", '{"command": "ls nowhere"}'),
        "All is well.\n" + call("bash", f'{{"command": "{DONE}"}}'),
    )
    kwargs = {
        "api_base": talk.site.url + "/v1",
        "api_key": KEY,
        "extra_headers": {"X-Session-Id": "task-1"},
    }
    agent = DefaultAgent(
        LitellmModel(
            model_name="openai/openclaw", model_kwargs=kwargs, cost_tracking="ignore_errors"
        ),
        LocalEnvironment(cwd=str(work), timeout=10),
        system_template="You help with a computer.",
        instance_template="{{task}}",
        step_limit=5,
    )
    ended = agent.run("Write hello into greeting.txt.")
    assert ended["exit_status"] == "Submitted"
    assert (work / "greeting.txt").read_text() == "hello\n"
    rows = talk.check_captured()
    assert {e.request.session for e, _, _ in rows} == {"task-1"}
    observed = [
        [m["content"] for m in reaction.messages] if reaction else None for _, _, reaction in rows
    ]
    assert observed[2] is None, "it was submitted: nothing answers the last turn"
    assert [len(o or ()) for o in observed[:2]] == [1, 2]
    assert "6 greeting.txt" in observed[0][0]
    assert "hello" in observed[1][0]
    assert "<returncode>0" not in observed[1][1]
    assert all(m["role"] == "tool" for _, _, r in rows[:2] for m in r.messages)
