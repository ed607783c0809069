"""Is a mathematical answer equal to the ground truth? Plain numbers exactly, everything else by math-verify."""

import logging
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from nemo_rl.environments.answers import marked_answer
from nemo_rl.environments.grading import Grade

# it warns on every call that its own alarm is off; the grader pool's deadline takes its place
logging.getLogger("math_verify").setLevel(logging.ERROR)

_DIGIT_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|\\[,;!: ]|~|(?<=\d) )(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_UNITS = re.compile(r"(?<=[\d.])(?:\s*\\(?:text|mathrm|textbf)\s*\{[^{}]*\}(?:\^\{?\d\}?)?|(?:\s+[A-Za-z]{2,}\.?)+)$")
# words after a number that change its value, or join it to another one
_NOT_UNITS = re.compile(
    r"\b(?:and|or|to|over|by|plus|minus|times|divided|pi|sqrt|hundred|thousand|million|billion|trillion|dozen"
    r"|percent|half|halves|thirds?|quarters?|squared|cubed|mod)\b",
    re.IGNORECASE,
)


def grade(response: str, metadata: Mapping[str, Any]) -> Grade:
    """1.0 if the response's answer equals `metadata["ground_truth"]`, else 0.0.

    Without a mark (box, tag, '####') the answer is whatever math-verify finds in the text.
    """
    truth = str(metadata["ground_truth"])
    gold = clean(marked_answer(truth) or truth)  # a ground truth may be a whole worked solution
    marked = marked_answer(response)
    if marked is None:
        found = _parse(response)
        marked = str(found[-1]) if found else None
    if not marked:
        return Grade(0.0)
    return Grade(float(is_equal(gold, clean(marked))), marked)


def clean(text: str) -> str:
    """Without dollar signs, digit separators, units after a number, and a full stop at the end."""
    text = text.strip().replace("\\$", "").replace("$", "")
    text = text.removeprefix("\\(").removesuffix("\\)").strip()
    text = _DIGIT_SEPARATOR.sub(",", text)
    text = text.rstrip(".").rstrip()
    unit = _UNITS.search(text)
    if unit and not _NOT_UNITS.search(unit.group()):
        text = text[: unit.start()]
    return text.rstrip(".").strip()


def is_equal(gold: str, answer: str) -> bool:
    """Equality of two cleaned answers."""
    percent = answer.endswith("%") and not gold.endswith("%")
    gold, answer = (re.sub(r"\s*\\?%$", "", text) for text in (gold, answer))
    gold_number, answer_number = as_number(gold), as_number(answer)
    if gold_number is not None and answer_number is not None:
        return answer_number == gold_number or (percent and answer_number / 100 == gold_number)
    answer = _with_brackets_of(gold, answer)
    if _brackets(gold) and _brackets(answer) and _brackets(gold) != _brackets(answer):
        return False
    return bool(verify(_parse_boxed(gold), _parse_boxed(answer), timeout_seconds=None))


def as_number(text: str) -> Fraction | None:
    """A plain decimal number, thousands separators allowed, as an exact fraction."""
    if not any(char.isdigit() for char in text) or not _NUMBER.fullmatch(text):
        return None
    return Fraction(text.replace(",", ""))


def _brackets(text: str) -> str:
    """The outermost brackets of a list, e.g. "(]" or "{}"; "" for anything that is not one bracketed list.

    math-verify takes a set for equal to a tuple or interval of the same members.
    """
    text = text.replace("\\left", "").replace("\\right", "").replace("\\{", "{").replace("\\}", "}").strip()
    if len(text) < 2 or text[0] not in "([{" or text[-1] not in ")]}":
        return ""
    depth, commas = 0, 0
    for position, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        commas += char == "," and depth == 1
        if depth == 0 and position < len(text) - 1:
            return ""  # two bracketed parts, as in (1+2)(3+4)
    return text[0] + text[-1] if commas else ""


def _with_brackets_of(gold: str, answer: str) -> str:
    """A bare "1,2" for the tuple (1,2) is in order, not the set {1,2} that math-verify would read."""
    if _brackets(gold) == "()" and "," in answer and not any(char in answer for char in "()[]{}"):
        return f"({answer})"
    return answer


def _parse_boxed(text: str) -> list[Any]:
    return _parse(f"\\boxed{{{text}}}", boxed_first=True)


def _parse(text: str, boxed_first: bool = False) -> list[Any]:
    latex = LatexExtractionConfig(boxed_match_priority=0) if boxed_first else LatexExtractionConfig()
    return list(parse(text, [latex, ExprExtractionConfig()], parsing_timeout=None))
