"""Sums in one reply, with the answer in tags: an environment as people write them for verifiers 0.3."""

import asyncio
import os

import verifiers as vf
from datasets import Dataset


def load_environment(fault: str = "", number: int = 3) -> vf.Environment:
    """`fault`: what goes wrong when a reply is scored."""

    def make_rows(first: int) -> Dataset:
        rows = [
            {"question": f"What is {n} plus {n}?", "answer": str(2 * n)}
            for n in range(first, first + number)
        ]
        return Dataset.from_list(rows)

    parser = vf.XMLParser(["answer"])

    async def has_sum(completion: vf.Messages, answer: str) -> float:
        if fault == "hang":
            await asyncio.sleep(1000)
        if fault == "die":
            os._exit(7)
        if fault == "raise":
            raise FileNotFoundError("the tool of the verifier")
        return 1.0 if parser.parse_answer(completion) == answer else 0.0

    def length(completion: vf.Messages) -> float:
        return float(len(completion[-1]["content"] or ""))

    rubric = vf.Rubric(funcs=[has_sum, length], weights=[1.0, 0.001], parser=parser)
    return vf.SingleTurnEnv(
        dataset=make_rows(1), eval_dataset=make_rows(50), parser=parser, rubric=rubric
    )
