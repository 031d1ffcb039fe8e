"""Tasks in the few words of the starter policy: in a terminal, in a repository, on a web page.

Each asks a question of the quiz, and what a reply does depends on its form: a line of a list (`- Certainly: Paris.`)
has an effect, and prose has none. So the form is what the starter learns.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from swe_bench_tasks import put_verifier

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "examples" / "environments" / "quiz_tasks.jsonl"
EVERY, EVERY_WEB = (
    4,
    8,
)  # of the questions, one becomes a task; an episode in a browser takes longer
SETTINGS = """version = "1.0"

[verifier]
timeout_sec = 60.0

[agent]
timeout_sec = 60.0

[environment]
memory_mb = 128
storage_mb = 8
allow_internet = false
"""
DOCKERFILE = "FROM debian:12-slim\nENV PATH=/app/bin:$PATH\nWORKDIR /app\nCOPY files/ /app/\n"

WRITE_ANSWER = '#!/bin/sh\nprintf "%s\\n" "$*" >>/app/answer.txt\n'
TEST_ANSWER = """#!/bin/sh
mkdir -p /logs/verifier
grep -qwF -- "$(cat /tests/answer.txt)" /app/answer.txt && echo 1 >/logs/verifier/reward.txt && exit
echo 0 >/logs/verifier/reward.txt
"""


def write_terminal_track(folder: Path) -> None:
    """Write task folders in which the only program for an answer has the name `-`.

    A line of a list is then a command that answers, and any other reply a command that the shell does not find.
    """
    for name, question, answer in _read_quiz():
        _write_texts(
            folder / name,
            {
                "task.toml": SETTINGS,
                "instruction.md": question + "\n",
                "environment/Dockerfile": DOCKERFILE,
                "environment/files/bin/-": WRITE_ANSWER,
                "tests/test.sh": TEST_ANSWER,
                "tests/answer.txt": answer + "\n",
                "solution/solve.sh": f"#!/bin/sh\n- {answer}\n",
            },
        )


EDIT_ANSWER = '''#!/usr/bin/env python3
"""Edits the repository: writes its words as the answer that the report asks for; called again, below them."""

import json
import sys
from pathlib import Path

question = Path("/app/REPORT").read_text().strip()
file = Path("/app/facts/answers.json")
answers = json.loads(file.read_text())
answers[question] = "\\n".join(filter(None, [answers[question], " ".join(sys.argv[1:])]))
file.write_text(json.dumps(answers, indent=2))
'''
PACKAGE = '''"""Answers to questions."""

import json
from pathlib import Path

ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text())


def find_answer(question):
    """Return the answer to a question, in one line."""
    return ANSWERS[question]
'''
TEST_OTHERS = """import unittest

from facts import ANSWERS, find_answer

OTHERS = {others!r}


class FactsTest(unittest.TestCase):
    def test_other_answers(self):
        self.assertEqual({{question: find_answer(question) for question in OTHERS}}, OTHERS)

    def test_each_answer_is_one_line(self):
        for answer in ANSWERS.values():
            self.assertNotIn("\\n", answer)
"""
TEST_REPORT = """import unittest

from facts import find_answer


class ReportTest(unittest.TestCase):
    def test_the_answer_is_right(self):
        self.assertRegex(find_answer({question!r}), r"\\b{answer}\\b")
"""
NAMED_TESTS = {
    "FAIL_TO_PASS": ["test_report.ReportTest.test_the_answer_is_right"],
    "PASS_TO_PASS": [
        "test_facts.FactsTest.test_other_answers",
        "test_facts.FactsTest.test_each_answer_is_one_line",
    ],
}


def write_swe_track(folder: Path) -> None:
    """Write task folders with a repository that lacks an answer, and the shipped verifier of repositories.

    The editor of the repository has the name `-`. The test of the report wants the right answer, and a test that passed
    before wants one line: a list of several lines repairs the fault and breaks something else.
    """
    quiz = list(_read_quiz())
    for at, (name, question, answer) in enumerate(quiz):
        others = {q: a for _, q, a in (quiz * 2)[at + 1 : at + 4]}
        before = json.dumps({question: "", **others}, indent=2)
        test_others = TEST_OTHERS.format(others=others)
        _write_texts(
            folder / name,
            {
                "task.toml": SETTINGS,
                "instruction.md": question + "\n",
                "environment/Dockerfile": DOCKERFILE,
                "environment/files/bin/-": EDIT_ANSWER,
                "environment/files/REPORT": question + "\n",
                "environment/files/facts/__init__.py": PACKAGE,
                "environment/files/facts/answers.json": before,
                "environment/files/tests/test_facts.py": test_others,
                "tests/tests.json": json.dumps(NAMED_TESTS, indent=2),
                "tests/suite/test_facts.py": test_others,
                "tests/suite/test_report.py": TEST_REPORT.format(question=question, answer=answer),
                "solution/solve.sh": f"#!/bin/sh\n- {answer}\n",
            },
        )
        put_verifier(folder / name / "tests")


PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Notebook</title>
<h1>{question}</h1>
<textarea id="notes" aria-label="Notes" rows="6" cols="60" autofocus></textarea>
<button id="save">Save</button>
<ul></ul>
<script>
const notes = document.querySelector("#notes");
function save() {{
  const items = notes.value.split("\\n").filter(line => line.startsWith("- "));
  for (const item of items) {{
    const shown = document.createElement("li");
    shown.textContent = item.slice(2);
    document.querySelector("ul").append(shown);
  }}
  sessionStorage.saved = items.join("\\n");
}}
notes.addEventListener("keydown", event => {{ if (event.key === "Enter") {{ event.preventDefault(); save(); }} }});
document.querySelector("#save").addEventListener("click", save);
</script>
"""


def write_web_track(folder: Path) -> None:
    """Write web tasks with a notebook that keeps the lines of a list, for replies that are typed."""
    for name, question, answer in _read_quiz(EVERY_WEB):
        task = {
            "goal": question,
            "page": "index.html",
            "done": "sessionStorage.saved !== undefined",
            "solved": f"/\\b{answer}\\b/.test(sessionStorage.saved)",
            "oracle": [["fill", "#notes", f"- {answer}"], ["click", "#save"]],
        }
        texts = {
            "task.json": json.dumps(task, indent=2),
            "index.html": PAGE.format(question=question),
        }
        _write_texts(folder / name, texts)


def _read_quiz(every: int = EVERY) -> Iterator[tuple[str, str, str]]:
    """Yield the name of a task, its question and the answer, which has letters and spaces alone."""
    for line in TASKS.read_text(encoding="utf-8").splitlines()[::every]:
        task = json.loads(line)
        yield task["id"].replace("/", "-"), task["question"], task["answer"]


def _write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755 if text.startswith("#!") else 0o644)
