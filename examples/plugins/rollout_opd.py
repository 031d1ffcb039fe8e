"""Conversations with a simulated user, and what the same model says when it is told the hint.

    openclaw-rl rollout --rollout-function-path examples/plugins/rollout_opd.py --prompt "Capital of France?"

The user here wants short answers; write your own in `get_next_feedback`. What the user says is the reaction from which
the judge takes score and hint: the distillation itself is the trainer's (train.method opd or combine). The teacher is
asked aside (`side=True`), for a look at it: its words are not part of the conversation and never trained on.
"""

WORDS = 8  # that the simulated user is content with


async def get_next_feedback(student_response: str) -> str:
    """What the user says next."""
    if len(student_response.split()) > WORDS:
        return "Too long. Keep it short, please."
    return "Perfect, thanks!"


async def extract_hint_from_feedback(feedback: str) -> str | None:
    """What would have led to a better reply; None: nothing."""
    return "Keep answers short." if feedback.startswith("Too long") else None


def create_next_prompt(student_response: str, feedback: str) -> str:
    """The model keeps the history: the feedback alone is the next prompt."""
    return feedback


async def collect_opd_trajectory(prompt: str, student_model, teacher_augmentation_fn, max_turns: int = 10) -> dict:
    """`teacher_augmentation_fn(prompt, hint)` is supplied: it puts the hint where the trainer puts it."""
    trajectory = {"student_responses": [], "teacher_responses": [], "rewards": [], "advantages": []}
    current_prompt = prompt
    for _ in range(max_turns):
        student_response = await student_model.generate(current_prompt)
        trajectory["student_responses"].append(student_response)

        feedback = await get_next_feedback(student_response)
        hint = await extract_hint_from_feedback(feedback)
        trajectory["rewards"].append(1.0 if hint is None else -1.0)
        if hint is None:
            await student_model.feedback(
                score=1, comment=feedback
            )  # nothing follows the last reply: it is said outright
            break

        teacher_prompt = teacher_augmentation_fn(current_prompt, hint)
        trajectory["teacher_responses"].append(await student_model.generate(teacher_prompt, side=True))
        current_prompt = create_next_prompt(student_response, feedback)
    return trajectory
