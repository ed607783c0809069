"""Checks expressions over a run's metrics, prints a table, and exits 1 if one is false or cannot be evaluated.

Usage: python tests/check_metrics.py metrics.json 'max(data["train/reward"]) > 0.35' 'data["train/loss"]["20"] < 1'

metrics.json is {metric: {step: value}}, as json_dump_tb_logs.py writes it. Expressions may use `data[...]`, numbers,
arithmetic, comparisons, `and`/`or`/`not`, and these functions of a metric:

    min(m)  max(m)  median(m)  len(m)
    mean(m, range_start=0, range_end=0, ignore_top_p=0.0)   over steps range_start <= step < range_end, by step number;
        0 is open, a negative one counts from the last: mean(m, -6, 0) is the last six steps. ignore_top_p drops
        that share of the largest values
    ratio_above(m, threshold)   the share of values above the threshold

Nothing else is accepted: expressions are walked, never executed as Python. NaN (null) makes any comparison false.
"""

import argparse
import ast
import json
import math
import operator
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Points = dict[str, float | None]


class CheckError(Exception):
    """An expression that cannot be evaluated: unknown metric or step, or something outside the small language."""


def _values(points: Points) -> list[float]:
    if not isinstance(points, dict):
        raise CheckError('this function wants a metric, such as data["train/reward"]')
    if not points:
        raise CheckError("the metric has no values")
    return [math.nan if value is None else float(value) for value in points.values()]


def _min(points: Points) -> float:
    values = _values(points)
    return math.nan if any(map(math.isnan, values)) else min(values)


def _max(points: Points) -> float:
    values = _values(points)
    return math.nan if any(map(math.isnan, values)) else max(values)


def _median(points: Points) -> float:
    values = _values(points)
    return math.nan if any(map(math.isnan, values)) else statistics.median(values)


def _mean(points: Points, range_start: int = 0, range_end: int = 0, ignore_top_p: float = 0.0) -> float:
    if not 0.0 <= ignore_top_p < 1.0:
        raise CheckError(f"ignore_top_p must be in [0, 1), not {ignore_top_p}")
    _values(points)
    last = max(int(step) for step in points)
    start = last + 1 + range_start if range_start < 0 else range_start
    end = last + 1 + range_end if range_end <= 0 else range_end
    chosen = _values({step: value for step, value in points.items() if start <= int(step) < end})
    if any(map(math.isnan, chosen)):
        return math.nan
    kept = sorted(chosen)[: len(chosen) - int(len(chosen) * ignore_top_p)]
    return statistics.fmean(kept)


def _ratio_above(points: Points, threshold: float) -> float:
    # a NaN is no value within bounds, so it counts as above
    values = _values(points)
    return sum(not value <= threshold for value in values) / len(values)


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": _min,
    "max": _max,
    "mean": _mean,
    "median": _median,
    "ratio_above": _ratio_above,
    "len": lambda points: len(_values(points)),
}
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class Evaluator:
    """Evaluates one expression; `values` keeps the measured side of every comparison for the table."""

    def __init__(self, data: dict[str, Points]) -> None:
        self.data = data
        self.values: list[float] = []

    def evaluate(self, expression: str) -> bool:
        try:
            tree = ast.parse(expression.strip(), mode="eval")
        except SyntaxError as error:
            raise CheckError(f"not an expression: {error.msg}") from error
        result = self._visit(tree.body)
        if not isinstance(result, bool):
            raise CheckError("not a comparison: it is neither true nor false")
        return result

    def _visit(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() | str() as value):
                return value
            case ast.Name(id="data"):
                return self.data
            case ast.Subscript(value=container, slice=key):
                return self._item(self._visit(container), self._visit(key))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _FUNCTIONS:
                named = {k.arg: self._visit(k.value) for k in keywords if k.arg is not None}
                return self._call(name, [self._visit(a) for a in args], named)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self._visit(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self._arithmetic(_OPERATORS[type(op)], self._visit(left), self._visit(right))
            case ast.BoolOp(op=op, values=parts):
                # all parts are visited, so that a missing metric is never hidden by a short cut
                results = [self._visit(part) for part in parts]
                return all(results) if isinstance(op, ast.And) else any(results)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compare(left, ops, comparators)
        raise CheckError(f"not allowed here: {ast.unparse(node)}")

    def _item(self, container: Any, key: Any) -> Any:
        if not isinstance(container, dict):
            raise CheckError("only data[metric] and data[metric][step] can be indexed")
        name = str(key)
        if name not in container:
            kind = "metric" if container is self.data else "step"
            raise CheckError(f"no {kind} {name!r} in the file")
        return math.nan if container[name] is None else container[name]

    def _call(self, name: str, args: list[Any], named: dict[str, Any]) -> float:
        try:
            return _FUNCTIONS[name](*args, **named)
        except TypeError as error:
            raise CheckError(f"{name}: {error}") from error

    def _arithmetic(self, function: Callable[..., Any], left: Any, right: Any) -> Any:
        if not all(isinstance(side, (int, float)) for side in (left, right)):
            raise CheckError("arithmetic wants numbers")
        try:
            return function(left, right)
        except ZeroDivisionError as error:
            raise CheckError("division by zero") from error

    def _compare(self, left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr]) -> bool:
        nodes = [left, *comparators]
        sides = [self._visit(node) for node in nodes]
        for side, node in zip(sides, nodes, strict=True):
            if not isinstance(side, (int, float)):
                raise CheckError(f"not a number: {ast.unparse(node)}")
            if not isinstance(node, ast.Constant):
                self.values.append(side)
        if unknown := [op for op in ops if type(op) not in _OPERATORS]:
            raise CheckError(f"not allowed here: {type(unknown[0]).__name__}")
        # NaN != x is true in Python, but a NaN never passes a check
        numbers = not any(math.isnan(side) for side in sides)
        pairs = zip(ops, sides[:-1], sides[1:], strict=True)
        return numbers and all(_OPERATORS[type(op)](a, b) for op, a, b in pairs)


def check(data: dict[str, Points], expressions: list[str]) -> tuple[Table, bool]:
    """The table of results, and whether all expressions hold."""
    table = Table("check", "measured", "result", title="Metric checks")
    passed = True
    for expression in expressions:
        evaluator = Evaluator(data)
        try:
            good = evaluator.evaluate(expression)
            result = "[green]pass" if good else "[red]FAIL"
        except CheckError as error:
            good, result = False, f"[red]FAIL: {_escape(str(error))}"
        table.add_row(_escape(expression), ", ".join(f"{value:.6g}" for value in evaluator.values), result)
        passed = passed and good
    return table, passed


def _escape(text: str) -> str:
    """Square brackets are rich's markup and Python's subscripts."""
    return text.replace("[", r"\[")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", type=Path)
    parser.add_argument("expressions", nargs="+", metavar="expression")
    arguments = parser.parse_args()
    data = json.loads(arguments.metrics.read_text(encoding="utf-8"))
    table, passed = check(data, arguments.expressions)
    # a log file has no width; 80 columns would cut the expressions
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
