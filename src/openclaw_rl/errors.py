"""Exceptions of the package. Each message says what happened, what was expected and what to do."""

from __future__ import annotations

from typing import Any


class OpenClawError(Exception):
    """Base class of all errors that this package raises on purpose. The message is written for the user."""


def rebuild_error(kind: str, message: str) -> Exception:
    """Rebuild an error from another process; a class that is neither ours nor `ValueError` becomes `OpenClawError`."""
    if kind == "ValueError":
        return ValueError(message)
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, OpenClawError):
        return found(message)
    return OpenClawError(f"{kind}: {message}")


class ConfigError(OpenClawError):
    """Raised if a setting is unknown, out of range or contradicts another one."""


class ModelError(OpenClawError):
    """Raised if a model folder is missing or incomplete, or if the engine does not support the model."""


class OutOfMemory(ModelError):
    """Raised if a step or a server does not fit into the memory of its device."""


class TooLarge(ModelError):
    """Raised if the longest turn of a step exceeds what the trainer takes; the step is possible without it."""


class TurnOutOfMemory(TooLarge, OutOfMemory):
    """Raised if a step does not fit into memory even with one row per pass: the longest turn exceeds this device."""


class BrokenPolicy(OpenClawError):
    """Raised if the policy's weights produce non-finite numbers: no turn causes it, and every batch would fail."""


class RanksGone(OpenClawError):
    """Raised if a rank died or hangs: the step of all ranks is lost and was not published."""


class RayUnusable(ConfigError):
    """Raised if Ray cannot run the ranks: it is not installed, no head answers, or the cluster has no place."""


class StoreError(OpenClawError):
    """Raised if the store cannot be opened, is corrupt or too new, or if the disk fails."""


class DiskFull(StoreError):
    """Raised if a disk or a quota is full. Every stage waits and tries again; nothing that was recorded is lost."""


class StartStopped(OpenClawError):
    """Raised if a worker is asked to stop while it starts: nothing is wrong, and nothing was changed."""


class DamagedRow(OpenClawError):
    """Raised if a turn in the store cannot be read, for example for bad JSON. Other turns are not affected."""

    def __init__(self, turn: str, reason: str) -> None:
        super().__init__(f"damaged: {reason}")
        self.turn = turn


class StaleLease(OpenClawError):
    """Raised if the lease was lost: another holder may be working, so nothing was published."""


class WorkerNameTaken(OpenClawError):
    """Raised if a worker of the same name runs on the home: two would do the same work twice."""


class TrainerAbsent(OpenClawError):
    """Raised if the trainer is another program and is not connected, or ended in a step: nothing was published."""


class IdentityMismatch(OpenClawError):
    """Raised if stored tokens do not match the model: tokenizer, template, special ids or base weights changed."""


class EngineError(OpenClawError):
    """Raised if the engine refuses a call; the engine itself works.

    `blames_request`: the call is at fault, and would be refused again.
    """

    blames_request = True


class EngineOutOfMemory(EngineError, OutOfMemory):
    """Raised if a server ended because the memory of its device ran out."""


class NoTokenIds(EngineError):
    """Raised if an engine returns text instead of the sampled token ids, so that it cannot serve the policy."""


class EngineFull(EngineError):
    """Raised if the engine has no place for a version until a running reply has ended."""


class EngineGone(EngineError):
    """Raised if the engine's process died or cannot be reached; its running replies are aborted."""


class ModelLost(EngineGone):
    """Raised if a service lost a model that was made there, as an open server does that was started again."""


class SamplingUnsupported(EngineError):
    """Raised if the engine does not support a sampling parameter of the request. The client can leave it out."""


class GrammarError(EngineError):
    """Raised if the engine does not support grammars, or not this grammar."""


class JudgeError(OpenClawError):
    """Raised if the judge gives no usable answer. It is not a bad score: the turn waits and is judged again."""


class UnreadableAnswer(JudgeError):
    """Raised if the judge answers, but in no form that can be read. It is asked a few times more."""


class JudgeNotReady(OpenClawError):
    """Raised if a judge that still prepares has no verdict on a turn yet. `retry_after`: seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SandboxError(OpenClawError):
    """Raised if no box can be opened here, or if a box refuses a transfer."""


class BoxLost(SandboxError):
    """Raised if a box has ended: it was closed, its lifetime is over, or a command used up its memory or processes."""


class PluginError(OpenClawError):
    """Raised if a plug-in cannot be loaded or breaks its contract. Names file, line, actual and expected value."""


class RequestError(OpenClawError):
    """Raised if a client's request is invalid. Carries the fields of an OpenAI-style error body."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class TemplateRefusal(RequestError):
    """Raised if the model's chat template rejects a conversation."""


class PromptTooLong(RequestError):
    """Raised if a prompt does not fit into the context. The message has OpenAI's words, which clients look for.

    `tokens`: length of the prompt; a lower bound with `is_minimum`, because a long prompt is not tokenized whole.
    """

    def __init__(self, tokens: int, limit: int, *, is_minimum: bool = False) -> None:
        self.tokens = tokens
        self.limit = limit
        self._is_minimum = is_minimum
        super().__init__(
            self.message_for("messages"), param="messages", code="context_length_exceeded"
        )

    def message_for(self, field: str) -> str:
        """Return the message for a request whose prompt is in `field`."""
        return (
            f"This model's maximum context length is {self.limit} tokens. However, your {field} resulted in "
            f"{'at least ' * self._is_minimum}{self.tokens} tokens. Please reduce the length of the {field}."
        )


def json_type_name(value: Any) -> str:
    """Return the JSON type of a value, for error messages."""
    names = {
        dict: "an object",
        list: "a list",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
    }
    return names.get(type(value), "null")


_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "OutOfMemoryError",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch ran out of memory: on a GPU, on a CPU (plain `RuntimeError`), or in a GPU library."""
    return has_out_of_memory_text(str(error))


def has_out_of_memory_text(output: str) -> bool:
    """Return whether the output of a program that uses torch says that memory ran out."""
    return any(text in output for text in _OUT_OF_MEMORY_TEXTS)
