"""Conversations with a simulated user, and the replies of the same model with the hint in its prompt.

    openclaw-rl rollout --rollout-function-path examples/plugins/rollout_opd.py --prompt "Capital of France?"

This user wants short answers; write your own in `get_next_feedback`. The user's message is the reaction from which the
judge derives score and hint; the trainer does the distillation (train.method opd or combine). The teacher's replies are
only for inspection: they are requested with `side=True`, outside the conversation, and never trained on.
"""

WORDS = 8  # longest reply that the simulated user accepts


async def get_next_feedback(student_response: str) -> str:
    """Return the user's next message."""
    if len(student_response.split()) > WORDS:
        return "Too long. Keep it short, please."
    return "Perfect, thanks!"


async def extract_hint_from_feedback(feedback: str) -> str | None:
    """Return a hint that would have led to a better reply, or None."""
    return "Keep answers short." if feedback.startswith("Too long") else None


def create_next_prompt(student_response: str, feedback: str) -> str:
    """Return the feedback alone, because the model keeps the history."""
    return feedback


async def collect_opd_trajectory(
    prompt: str, student_model, teacher_augmentation_fn, max_turns: int = 10
) -> dict:
    """Run one conversation. `teacher_augmentation_fn(prompt, hint)` adds the hint as the trainer does."""
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
            )  # nothing follows the last reply, so it needs explicit feedback
            break

        teacher_prompt = teacher_augmentation_fn(current_prompt, hint)
        trajectory["teacher_responses"].append(
            await student_model.generate(teacher_prompt, side=True)
        )
        current_prompt = create_next_prompt(student_response, feedback)
    return trajectory
