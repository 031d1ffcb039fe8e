"""Tasks as people write them for Inspect."""

import asyncio
import os

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, includes, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver

SAMPLES = [
    Sample("What is the capital of France?", target="Paris"),
    Sample("What is the capital of Italy?", target="Rome", id="it"),
]


@task
def capitals() -> Task:
    return Task(dataset=SAMPLES, solver=generate(), scorer=includes())


@task
def twice() -> Task:
    @solver
    def ask_twice() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            for _ in range(2):
                state = await generate(state)
            return state

        return solve

    return Task(dataset=SAMPLES[:1], solver=ask_twice(), scorer=includes())


@task
def dies() -> Task:
    @scorer(metrics=[accuracy()])
    def die() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            os._exit(5)
            return Score(value=CORRECT)

        return score

    return Task(dataset=SAMPLES[:1], solver=generate(), scorer=die())


@task
def hangs(seconds: int = 1000) -> Task:
    @scorer(metrics=[accuracy()])
    def wait() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            await asyncio.sleep(seconds)
            return Score(value=CORRECT if target.text in state.output.completion else INCORRECT)

        return score

    return Task(dataset=SAMPLES[:1], solver=generate(), scorer=wait())


@task
def boxed() -> Task:
    return Task(dataset=SAMPLES[:1], solver=generate(), scorer=includes(), sandbox="local")
