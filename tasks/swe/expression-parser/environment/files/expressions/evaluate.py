"""Evaluates expressions with + - * / ** and parentheses, with the precedence of Python."""

from expressions.tokens import split


def evaluate(text):
    """Return the value of an expression. Raises ValueError if it is not one."""
    tokens = split(text)
    value = _sum(tokens)
    if tokens:
        raise ValueError(f"unexpected {tokens[0]!r}")
    return value


def _sum(tokens):
    value = _product(tokens)
    while tokens and tokens[0] in ("+", "-"):
        value = value + _product(tokens) if tokens.pop(0) == "+" else value - _product(tokens)
    return value


def _product(tokens):
    value = _signed(tokens)
    while tokens and tokens[0] in ("*", "/"):
        value = value * _signed(tokens) if tokens.pop(0) == "*" else value / _signed(tokens)
    return value


def _signed(tokens):
    if tokens and tokens[0] in ("+", "-"):
        return _signed(tokens) if tokens.pop(0) == "+" else -_signed(tokens)
    return _power(tokens)


def _power(tokens):
    value = _atom(tokens)
    while tokens and tokens[0] == "**":
        tokens.pop(0)
        value = value ** _atom(tokens)
    return value


def _atom(tokens):
    if not tokens:
        raise ValueError("the expression ends too early")
    token = tokens.pop(0)
    if token == "(":
        value = _sum(tokens)
        if not tokens or tokens.pop(0) != ")":
            raise ValueError("expected )")
        return value
    if isinstance(token, str):
        raise ValueError(f"unexpected {token!r}")
    return token
