"""Tools that calculate. They have no state."""

import ast
import operator

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
TO_BASE = {
    "km": ("length", 1.0, 0.0),
    "mile": ("length", 1.609344, 0.0),
    "kg": ("mass", 1.0, 0.0),
    "pound": ("mass", 0.45359237, 0.0),
    "litre": ("volume", 1.0, 0.0),
    "gallon": ("volume", 3.785411784, 0.0),
    "celsius": ("temperature", 1.0, 0.0),
    "fahrenheit": ("temperature", 5 / 9, -160 / 9),
}


def calculate(expression: str) -> float:
    return round(evaluate_node(ast.parse(expression, mode="eval").body), 10)


def evaluate_node(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](evaluate_node(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = evaluate_node(node.left), evaluate_node(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > 100:
            raise ValueError("exponents are limited to 100")
        return OPERATIONS[type(node.op)](left, right)
    raise ValueError("only numbers, + - * / ** % and parentheses are allowed")


def convert_unit(value: float, from_unit: str, to_unit: str) -> float:
    kind, factor, offset = TO_BASE[from_unit]
    other, divisor, back = TO_BASE[to_unit]
    if kind != other:
        raise ValueError(f"{from_unit} and {to_unit} measure different things")
    return round((value * factor + offset - back) / divisor, 6)
