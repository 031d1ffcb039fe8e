"""Reads sections of settings: `[name]`, then lines `key = value`."""

from settings.values import read_value


class SettingsError(ValueError):
    """A line that cannot be read; the message has its number."""


def parse(text):
    """Return {section: {key: value}}. Keys before the first section are in the section "". `#` begins a comment."""
    found, section = {}, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw).strip()
        if not line:
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            found.setdefault(section, {})
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"line {number}: expected key = value")
        found.setdefault(section, {})[key.strip()] = read_value(value.strip())
    return found


def _without_comment(line):
    """Return a line up to a `#` that is not within double quotes."""
    quoted = False
    for at, character in enumerate(line):
        if character == '"':
            quoted = not quoted
        elif character == "#" and not quoted:
            return line[:at]
    return line
