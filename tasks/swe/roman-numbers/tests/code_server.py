"""The process of the code under test: imports it, and does what the tests ask of it. Follows `peer.py`.

python3 -I -B -c "PEER, THEN THIS" REPOSITORY
"""

import builtins
import importlib
import operator
import os
import sys
from typing import Any

ACTIONS = {
    "import": importlib.import_module,
    "call": lambda function, *values, **named: function(*values, **named),
    "enter": lambda manager: type(manager).__enter__(manager),
    "exit": lambda manager, *error: type(manager).__exit__(manager, *error),
}
for _module, _names in (
    (
        builtins,
        "getattr setattr delattr iter next len str repr bool int float format abs reversed round",
    ),
    (builtins, "isinstance issubclass divmod"),
    (
        operator,
        "contains getitem setitem delitem index add sub mul truediv floordiv mod pow matmul neg",
    ),
    (operator, "pos invert and_ or_ xor lshift rshift iadd isub imul ior iand"),
):
    ACTIONS |= {name: getattr(_module, name) for name in _names.split()}


class TestObject:
    """An object of the tests. It can be passed back, and called if it is callable."""

    def __init__(self, server: "CodeServer", number: int) -> None:
        self._server = server
        self._number = number

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._server.ask("call", self, *values, **named)


class CodeServer(Peer):  # noqa: F821
    """The end of the code under test."""

    def __init__(self, *pipes: int) -> None:
        super().__init__(*pipes)
        self._test_objects = {}

    def perform(self, action: str, values: list[Any], named: dict[str, Any]) -> Any:
        return ACTIONS[action](*values, **named)

    def encode(self, value: Any) -> Any:
        if isinstance(value, TestObject):
            return ["yours", value._number]
        return super().encode(value)

    def describe_object(self, value: Any) -> list[Any]:
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["error", value.__name__, [self.encode(base) for base in value.__bases__]]
        return ["object"]

    def find_object(self, number: int, description: list[Any]) -> TestObject:
        return self._test_objects.setdefault(number, TestObject(self, number))

    def describe_error(self, error: BaseException) -> list[Any]:
        number = getattr(error, "_number_of_tests", None)
        if number is not None:
            return ["yours", number]
        try:
            values = [self.encode(value) for value in error.args]
        except Exception:  # noqa: BLE001  its own `__reduce__` or `__str__` may raise anything
            values = []
        try:
            text = str(error)
        except Exception:  # noqa: BLE001
            text = ""
        return ["new", self.encode(type(error)), values, text, self.encode(error)]

    def build_error(self, description: list[Any]) -> BaseException:
        kind, number, text = description
        error = getattr(builtins, kind, Exception)(text)
        error._number_of_tests = number
        return error


def serve(repository: str) -> None:
    """Answer what the tests ask, until they end."""
    reader = os.dup(0)
    writer = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silence, number)
    os.chdir(repository)
    # The standard library comes first.
    sys.path.append(repository)
    server = CodeServer(reader, writer)
    while True:
        _, *question = server.receive()
        server.answer(*question)


if __name__ == "__main__":
    serve(sys.argv[1])
