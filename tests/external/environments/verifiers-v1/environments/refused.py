"""A taskset whose tasks need a container."""

from collections.abc import Iterator

import verifiers.v1 as vf


class BoxedTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    NEEDS_CONTAINER = True


class BoxedTaskset(vf.Taskset[BoxedTask, vf.TasksetConfig]):
    def load(self) -> Iterator[BoxedTask]:
        yield BoxedTask(vf.TaskData(prompt="Repair it."), self.config.task)


__all__ = ["BoxedTaskset"]
