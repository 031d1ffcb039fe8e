"""Values and calls between the tests and the code under test, which are two processes: lines of JSON over pipes.

Plain values go as what they are, and are built afresh on the other side. Everything else goes as a number that means
something only to its owner. Each side answers what the other asks of its own objects, and waits for one answer at a
time. This file is read by both processes.
"""

import datetime
import decimal
import fractions
import json
import os
from typing import Any

MAX_LINE = 16 << 20
"""Bytes of a message."""
# Types whose values are rebuilt from these arguments.
REBUILT = {
    "datetime": (
        datetime.datetime,
        lambda v: [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond],
    ),
    "date": (datetime.date, lambda v: [v.year, v.month, v.day]),
    "time": (datetime.time, lambda v: [v.hour, v.minute, v.second, v.microsecond]),
    "timedelta": (datetime.timedelta, lambda v: [v.days, v.seconds, v.microseconds]),
    "decimal": (decimal.Decimal, lambda v: [str(v)]),
    "fraction": (fractions.Fraction, lambda v: [v.numerator, v.denominator]),
    "complex": (complex, lambda v: [v.real, v.imag]),
    "range": (range, lambda v: [v.start, v.stop, v.step]),
    "slice": (slice, lambda v: [v.start, v.stop, v.step]),
}
SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
BUILTIN_CLASSES = {
    one.__name__: one for one in vars(__import__("builtins")).values() if isinstance(one, type)
}


class PeerEnded(Exception):
    """The other process ended, or broke the protocol."""


class Peer:
    """One end. `reader`, `writer`: file descriptors."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = b""
        self._objects = []
        self._numbers = {}

    # What the two sides do differently.

    def perform(self, action: str, values: list[Any], named: dict[str, Any]) -> Any:
        """Do what the other side asks, and return the result."""
        raise NotImplementedError

    def describe_object(self, value: Any) -> list[Any]:
        """Return what the other side learns of an object, as JSON."""
        raise NotImplementedError

    def find_object(self, number: int, description: list[Any]) -> Any:
        """Return what stands for an object of the other side."""
        raise NotImplementedError

    def describe_error(self, error: BaseException) -> list[Any]:
        """Return an error of this side as JSON."""
        raise NotImplementedError

    def build_error(self, description: list[Any]) -> BaseException:
        """Return an error of the other side as an exception."""
        raise NotImplementedError

    # Questions and answers.

    def ask(self, action: str, *values: Any, **named: Any) -> Any:
        """Let the other side do something, and return the result. Raises what it raises, and `PeerEnded`."""
        encoded = {name: self.encode(value) for name, value in named.items()}
        self.send(["ask", action, [self.encode(value) for value in values], encoded])
        while True:
            kind, *content = self.receive()
            if kind == "ask":
                self.answer(*content)
            elif kind == "done":
                return self.decode(content[0])
            else:
                raise self.build_error(content[0])

    def answer(self, action: str, values: list[Any], named: dict[str, Any]) -> None:
        """Answer a question."""
        try:
            decoded = {str(name): self.decode(value) for name, value in named.items()}
            result = self.perform(action, [self.decode(value) for value in values], decoded)
            message = ["done", self.encode(result)]
        except PeerEnded:
            raise
        except BaseException as error:  # noqa: BLE001  the other side raises it
            message = ["failed", self.describe_error(error)]
        self.send(message)

    def send(self, message: list[Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        if len(data) > MAX_LINE:
            raise ValueError(f"a value of {len(data)} bytes is more than the tests take")
        while data:
            data = data[os.write(self._writer, data) :]

    def receive(self) -> list[Any]:
        """Return the next message. Raises `PeerEnded`."""
        while b"\n" not in self._rest:
            data = os.read(self._reader, 1 << 16)
            if not data or len(self._rest) > MAX_LINE:
                raise PeerEnded("the code under test ended")
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise PeerEnded("the code under test wrote what is no message") from None
        if not isinstance(message, list) or len(message) not in (2, 4):
            raise PeerEnded("the code under test wrote what is no message")
        return message

    # Values.

    def encode(self, value: Any) -> Any:
        """Return a value as JSON. A value of a class that extends a plain one goes as the plain one."""
        if value is None or type(value) in (bool, str, int):
            return value
        if isinstance(value, int):
            return int.__index__(value)
        if isinstance(value, float):
            return float.__pos__(value)
        if isinstance(value, str):
            return str.__add__(value, "")
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", bytes(value).hex()]
        if isinstance(value, dict):
            pairs = [[self.encode(key), self.encode(one)] for key, one in dict.items(value)]
            return ["dict", pairs]
        for name, kind in SEQUENCES.items():
            if isinstance(value, kind):
                return [name, [self.encode(one) for one in kind.__iter__(value)]]
        for name, (kind, parts) in REBUILT.items():
            if type(value) is kind and getattr(value, "tzinfo", None) is None:
                return [name, [self.encode(part) for part in parts(value)]]
        if isinstance(value, type) and BUILTIN_CLASSES.get(value.__name__) is value:
            return ["class", value.__name__]
        if value is Ellipsis:
            return ["ellipsis", None]
        return self.refer(value)

    def refer(self, value: Any) -> list[Any]:
        """Return the number of an object of this side."""
        number = self._numbers.get(id(value))
        if number is None:
            number = len(self._objects)
            # The list keeps the object, so that its id stays its own.
            self._objects.append(value)
            self._numbers[id(value)] = number
        return ["mine", [number, self.describe_object(value)]]

    def own_object(self, number: Any) -> Any:
        """Return an object of this side by its number. Raises `PeerEnded`."""
        if type(number) is not int or not 0 <= number < len(self._objects):
            raise PeerEnded("the code under test named an object that there is not")
        return self._objects[number]

    def decode(self, data: Any) -> Any:
        """Return the value of JSON. Raises `PeerEnded` for what is no value."""
        if not isinstance(data, (list, dict)):
            return data
        try:
            name, content = data
            if name == "bytes":
                return bytes.fromhex(content)
            if name == "dict":
                return {self.decode(key): self.decode(value) for key, value in content}
            if name in SEQUENCES:
                return SEQUENCES[name](self.decode(one) for one in content)
            if name in REBUILT:
                return REBUILT[name][0](*(self.decode(one) for one in content))
            if name == "class":
                return BUILTIN_CLASSES[content]
            if name == "ellipsis":
                return Ellipsis
            if name == "yours":
                return self.own_object(content)
            if name == "mine":
                number, description = content
                return self.find_object(number, description)
        except (TypeError, ValueError, KeyError, ArithmeticError):
            pass
        raise PeerEnded("the code under test wrote what is no value")
