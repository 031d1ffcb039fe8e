"""Malformed calls, and texts that only look like calls, made by rules from good calls: for each family of formats."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Arguments = dict[str, Any]
WORDS = ("ls -la", "São Paulo", "a, b: c", "it is {x}", "2 < 3", "x=1", "path/to/file.py", "ünï")
PARAMETERS = {
    "type": "object",
    "properties": {
        "cmd": {"type": "string"},
        "n": {"type": "integer"},
        "deep": {"type": "boolean"},
        "l": {"type": "array"},
        "o": {"type": "object"},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "e", "parameters": PARAMETERS}}
    for name in ("run_it", "look.up")
]
NAMES = tuple(tool["function"]["name"] for tool in TOOLS)  # type: ignore[index]


@dataclass(frozen=True, kw_only=True)
class MalformedCall:
    """A text of a model, and the calls that it means."""

    rule: str
    text: str
    name: str
    arguments: Arguments


@dataclass(frozen=True, kw_only=True)
class Lookalike:
    """A text of a model that is no call. `is_cut`: a limit of tokens ended it."""

    rule: str
    text: str
    is_cut: bool = False


def random_arguments(source: random.Random) -> Arguments:
    values: dict[str, Any] = {
        "cmd": source.choice(WORDS),
        "n": source.randrange(100),
        "deep": source.random() < 0.5,
        "l": [source.choice(WORDS), source.randrange(9)],
        "o": {"a": None, "b": source.choice(WORDS)},
    }
    keys = source.sample(sorted(values), source.randint(1, 4))
    return {key: values[key] for key in keys}


def to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def unquoted(value: Any) -> str:
    """JSON whose keys have no quotation marks."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {unquoted(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(unquoted, value)) + "]"
    return to_json(value)


def with_commas(value: Any) -> str:
    """JSON with a comma behind the last item of objects and lists."""
    if isinstance(value, dict):
        return "{" + "".join(f"{to_json(k)}: {with_commas(v)}, " for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + "".join(f"{with_commas(item)}, " for item in value) + "]"
    return to_json(value)


def python_words(value: Any) -> str:
    """JSON with Python's literals, in double quotes."""
    text = to_json(value)
    for word, python in (("true", "True"), ("false", "False"), ("null", "None")):
        text = text.replace(f": {word}", f": {python}")
    return text


def as_floats(value: Any) -> Any:
    """Write whole numbers as 5.0."""
    if type(value) is int:
        return float(value)
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    return [as_floats(item) for item in value] if isinstance(value, list) else value


def with_line_end(arguments: Arguments) -> Arguments:
    return arguments | {"cmd": "first line\nsecond\tline"}


def raw_line_ends(value: Any) -> str:
    return to_json(value).replace("\\n", "\n").replace("\\t", "\t")


Writer = Callable[[Any], str]
SYNTAX: Mapping[str, Writer] = {
    "commas behind the last item": with_commas,
    "single quotes and Python's literals": repr,
    "Python's literals": python_words,
    "keys without quotes": unquoted,
    "5.0 for whole numbers": lambda value: to_json(as_floats(value)),
    "indented": lambda value: to_json(value, indent=4),
    "tabulators and empty lines": lambda value: "\n\n" + to_json(value, indent="\t") + "\n\n",
    "no white space": lambda value: to_json(value, separators=(",", ":")),
    "fence": lambda value: f"```json\n{to_json(value)}\n```",
    "fence without a language": lambda value: f"```\n{to_json(value)}\n```",
    "one brace too many": lambda value: to_json(value) + "}",
    "braces and a bracket too many": lambda value: to_json(value) + "}}]",
    "semicolon": lambda value: to_json(value) + ";",
}
"""Rule -> JSON of an object with one fault."""


@dataclass(frozen=True, kw_only=True)
class JsonFormat:
    """A format whose calls are JSON. `ends`: what closes a call, the last first."""

    before: str
    ends: tuple[str, ...]
    key: str = ""
    """Key of the arguments beside the name; "": the name stands before the JSON."""
    in_list: bool = False

    def write(self, name: str, arguments: Any, syntax: Writer = to_json, ends: int = 99) -> str:
        """Write a call. `ends`: of its closing texts, how many it has."""
        value = {"name": name, self.key: arguments} if self.key else arguments
        body = f"[{syntax(value)}]" if self.in_list else syntax(value)
        closing = "".join(reversed(self.ends[len(self.ends) - min(ends, len(self.ends)) :]))
        return self.before.replace("NAME", name) + body + closing


JSON_FORMATS: Mapping[str, JsonFormat] = {
    "hermes": JsonFormat(before="<tool_call>\n", ends=("\n</tool_call>",), key="arguments"),
    "llama": JsonFormat(before="", ends=(), key="parameters"),
    "mistral": JsonFormat(before="[TOOL_CALLS]NAME[ARGS]", ends=()),
    "deepseek": JsonFormat(
        before="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        ends=("<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"),
    ),
    "harmony": JsonFormat(
        before="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        ends=("<|call|>",),
    ),
}


def malformed_json(form: JsonFormat, source: random.Random) -> Iterator[MalformedCall]:
    """Yield one call for each rule."""

    def call(rule: str, text: str, arguments: Arguments) -> MalformedCall:
        return MalformedCall(rule=rule, text=text, name=name, arguments=arguments)

    for rule, syntax in SYNTAX.items():
        # Where no tag begins a call, a fence shows code.
        if rule.startswith("fence") and not form.before:
            continue
        name = source.choice(NAMES)
        arguments = random_arguments(source)
        yield call(rule, form.write(name, arguments, syntax), arguments)
    name = source.choice(NAMES)
    arguments = with_line_end(random_arguments(source))
    yield call("line ends in strings", form.write(name, arguments, raw_line_ends), arguments)
    for rule, value in (("null", None), ("empty text", "")):
        if form.key:
            yield call(f"arguments {rule}", form.write(name, value), {})
    arguments = random_arguments(source)
    yield call("arguments as text", form.write(name, to_json(arguments)), arguments)
    missing = form.write(name, arguments, lambda value: to_json(value)[:-1])
    yield call("one brace missing", missing, arguments)
    for ends in range(len(form.ends)):
        yield call(f"only {ends} ends", form.write(name, arguments, ends=ends), arguments)
        short = form.write(name, arguments, ends=ends) + form.ends[-1 - ends].strip()[:4]
        yield call(f"half an end after {ends}", short, arguments)
    if form.key:
        yield call("no arguments", form.write(name, {}).replace(f', "{form.key}": {{}}', ""), {})
        openai = {"type": "function", "function": {"name": name, form.key: arguments}}
        yield call("OpenAI's form", form.write(name, {}, lambda _: to_json(openai)), arguments)


def malformed_xml(source: random.Random) -> Iterator[MalformedCall]:
    """Yield one call of the format with one tag for each argument for each rule."""
    quotes = ("", '"', "'")
    heads = {
        "quoted": lambda kind, name, mark: f"<{kind}={mark}{name}{mark}>",
        "attribute": lambda kind, name, mark: (
            f"<{kind} name={mark or chr(34)}{name}{mark or chr(34)}>"
        ),
        "spaces": lambda kind, name, mark: f"<{kind} = {mark}{name}{mark}>",
    }
    values: Mapping[str, Callable[[Any], str]] = {
        "plain": lambda value: value if isinstance(value, str) else to_json(value),
        "Python": lambda value: value if isinstance(value, str) else repr(value),
        "5.0": lambda value: value if isinstance(value, str) else to_json(as_floats(value)),
    }
    ends = ("</function>\n</tool_call>", "</function>\n</tool_c", "</tool_call>", "", "</func")
    for rule, head in heads.items():
        for mark in quotes:
            for kind, write in values.items():
                name = source.choice(NAMES)
                arguments = random_arguments(source)
                body = "".join(
                    f"{head('parameter', key, mark)}\n{write(value)}\n</parameter>\n"
                    for key, value in arguments.items()
                )
                end = source.choice(ends)
                text = f"<tool_call>\n{head('function', name, mark)}\n{body}{end}"
                label = f"{rule} {mark!r}, {kind}, end {end!r}"
                yield MalformedCall(rule=label, text=text, name=name, arguments=arguments)


def json_lookalikes(form: JsonFormat, source: random.Random) -> Iterator[Lookalike]:
    """Yield one text for each rule."""
    name = source.choice(NAMES)
    arguments = random_arguments(source) | {"cmd": source.choice(WORDS)}
    whole = form.write(name, arguments)
    closing = len(form.write(name, arguments)) - len(form.write(name, arguments, ends=0))
    length = len(whole) - closing - 2
    begin = len(form.before.replace("NAME", name))
    for part in (begin, begin + 1, *sorted(source.sample(range(begin + 2, length), 6))):
        yield Lookalike(rule="cut by the limit", text=whole[:part], is_cut=True)
    unclosed = form.write(
        name, arguments, lambda value: to_json(value).replace('"cmd": "', '"cmd": ', 1)
    )
    yield Lookalike(rule="a word without quotes", text=unclosed)
    for rule, value in (("list", ["ls"]), ("number", 5), ("true", True), ("words", "ls -la")):
        yield Lookalike(rule=f"arguments: {rule}", text=form.write(name, value))
    broken = form.write("walk", arguments, with_commas)
    yield Lookalike(rule="an unknown function, malformed", text=broken)
    opener = form.before.partition("NAME")[0].strip()
    if opener:
        yield Lookalike(rule="only the beginning", text=opener)
        yield Lookalike(rule="the beginning in prose", text=f"{opener} is how a call begins.")
        yield Lookalike(rule="prose before it", text=f"A call begins with {opener}, then a name.")
    if form.key:
        yield Lookalike(rule="no name", text=form.write(name, {}, lambda _: to_json(arguments)))
        yield Lookalike(
            rule="no arguments but keys",
            text=form.write(name, {}, lambda _: to_json({"name": name, "cmd": "ls"})),
        )
    yield Lookalike(
        rule="in a sentence",
        text=f"Write {to_json({'name': name, 'arguments': arguments})} to do it.",
    )
    yield Lookalike(rule="in code", text=f"`{to_json({'name': name, 'parameters': arguments})}`")
    yield Lookalike(
        rule="in Python", text=f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
    )
    yield Lookalike(rule="a person", text=to_json({"name": "Bob", "age": source.randrange(99)}))


def xml_lookalikes(source: random.Random) -> Iterator[Lookalike]:
    """Yield one text for each rule, of the format with one tag for each argument."""
    name = source.choice(NAMES)
    head = f"<tool_call>\n<function={name}>\n"
    body = f"{head}<parameter=cmd>\n{source.choice(WORDS)}"
    parts = (len(head) - 1, len(head), len(head) + 1, *source.sample(range(3, len(body)), 6))
    for part in parts:
        yield Lookalike(rule="cut by the limit", text=body[:part], is_cut=True)
    for end in ("</parameter>", "</parameter>\n", "</parameter>\n<", "</parameter>\n<par"):
        yield Lookalike(rule="cut between values", text=f"{body}\n{end}", is_cut=True)
    for rule, text in (
        ("no function", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
        ("only words", f"{head}ls -la\n</function>\n</tool_call>"),
        ("prose", f"<function={name}> begins a call."),
        ("prose before it", f"A call begins with <tool_call>, then <function={name}>."),
        ("in code", f"`<parameter=cmd>{source.choice(WORDS)}</parameter>`"),
        ("other XML", "<tools><name>run</name></tools>"),
        ("HTML", "<function>x</function> <b>run</b>"),
    ):
        yield Lookalike(rule=rule, text=text)


def malformed_derived(
    text: str, closer: str, name: str, arguments: Arguments
) -> Iterator[MalformedCall]:
    """Yield the call of a format that was derived from a template for each rule. `text`: as the template writes it."""
    whole = text.rstrip()
    open_text = whole.removesuffix(closer.strip()).rstrip()
    floats = whole
    for key, value in arguments.items():
        if type(value) is int:
            head = f"{key}{_between(whole, key, value)}"
            floats = floats.replace(f"{head}{value}", f"{head}{value}.0")
    texts = {
        "no closing tag": open_text,
        "half of the last tag": whole[:-3],
        "one character of the last tag missing": whole[:-1],
        "white space behind": text + "\n\n ",
        "words before": "I look.\n" + whole.lstrip(),
        "closing tag twice": whole + closer.strip(),
        "white space around the name": whole.replace(name, f" {name} ", 1),
        "5.0 for whole numbers": floats,
        "Python's literals": whole.replace("true", "True").replace("false", "False"),
    }
    for rule, one in texts.items():
        yield MalformedCall(rule=rule, text=one, name=name, arguments=arguments)


def _between(text: str, key: str, value: int) -> str:
    """Return what stands between a key and its value."""
    start = text.find(key) + len(key)
    return text[start : text.find(str(value), start)]
