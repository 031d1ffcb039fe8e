"""Converts Roman numbers from 1 to 3999."""

_PARTS = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
    (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)


def to_roman(number):
    """Return the Roman spelling of a number. Raises ValueError outside of 1 to 3999."""
    if not 1 <= number <= 3999:
        raise ValueError(f"expected 1 to 3999, got {number}")
    text = ""
    for value, letters in _PARTS:
        while number >= value:
            text += letters
            number -= value
    return text


def from_roman(text):
    """Return the number of a Roman spelling, in large or small letters. Raises ValueError for any other text."""
    number, rest = 0, text.upper()
    for value, letters in _PARTS:
        while rest.startswith(letters):
            number += value
            rest = rest[len(letters):]
    if rest or not 1 <= number <= 3999 or to_roman(number) != text.upper():
        raise ValueError(f"{text!r} is no Roman number")
    return number
