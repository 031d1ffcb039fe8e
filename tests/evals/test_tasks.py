"""The tasks can be solved by a plain, neutral reply of any model, and are not what a demo trains on."""

from __future__ import annotations

from itertools import chain

from openclaw_rl.evals.reply_properties import PROPERTIES, TaskReply, find_violations
from openclaw_rl.evals.tasks import TASK_SETS, conversation_tasks
from openclaw_rl.evals.toy_world import facts_of, questions_about

FORTY = (
    " This answer has a few more words, because the instruction asks for a detailed reply of a certain length. It adds "
    "nothing to the fact itself, which is short, but it shows that the length of a reply can be measured without any "
    "list of words."
)
NEUTRAL = {
    "What colour is a banana?": "The colour of a ripe banana is yellow.",
    "What is the capital of Poland?": "Warsaw is the capital of Poland.",
    "Which city is the capital of Cuba?": "The capital of Cuba is Havana." + FORTY,
    "What do you call a young kangaroo?": "A young kangaroo is called a joey." + FORTY,
    "What comes after December?": "After December comes January.",
    "What is the capital of Japan?": "It is Tokyo. The city is on the island of Honshu. It has many people.",
    "What are the four seasons of the year?": "- Spring\n- Summer\n- Autumn\n- Winter",
    "Who was the first person on the Moon, in which year, and with which mission?": (
        "- Neil Armstrong\n- 1969\n- Apollo 11"
    ),
    "Which ingredients does a simple pancake batter need?": "It needs flour, eggs, milk and a little salt.",
    "What is the opposite of full?": "The opposite of full is empty.",
    "What is the chemical symbol of copper?": '{"answer": "Cu"}',
    "Where is the Colosseum?": '{"city": "Rome", "country": "Italy"}',
    "Wie viele Tage hat eine Woche? Bitte antworte in einem ganzen Satz.": "Eine Woche hat sieben Tage.",
    "Quel est le plus grand océan du monde ? Réponds par une phrase complète.": (
        "Le plus grand océan du monde est l'océan Pacifique."
    ),
    "Which animal barks and is called the best friend of man?": "El animal que ladra es el perro.",
    "What is the currency of Thailand?": "the currency of thailand is the baht.",
    "What is the opposite of early?": "THE OPPOSITE OF EARLY IS LATE.",
    "What colour is an elephant?": "It is grey.",
    "How much is 8 plus 9?": "8 plus 9 is 17. Anything else?",
    "What is my cat called? Answer in at most 10 words.": "Your cat is called Pepper.",
}


def test_neutral_replies_solve_every_conversation_task() -> None:
    tasks = conversation_tasks()
    assert [task.name for task in tasks] == list(NEUTRAL)
    for task in tasks:
        found = find_violations(TaskReply(text=NEUTRAL[task.name]), task.properties)
        assert set(found.values()) == {None}, (task.name, found)


def test_the_reply_to_another_task_solves_none() -> None:
    for task in conversation_tasks():
        for name, text in NEUTRAL.items():
            if name != task.name:
                assert any(find_violations(TaskReply(text=text), task.properties).values()), (
                    task.name,
                    text,
                )


def test_every_property_is_used_by_a_task() -> None:
    used = chain.from_iterable(
        task.properties for make_tasks in TASK_SETS.values() for task in make_tasks()
    )
    assert set(used) == set(PROPERTIES)


def test_no_question_is_asked_in_a_demo() -> None:
    asked = {question.text for fact in facts_of("asked") for question in questions_about(fact)}
    assert not asked & {
        message["content"] for task in conversation_tasks() for message in task.messages
    }
