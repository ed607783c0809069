"""Is a mathematical answer equal to the ground truth? Plain numbers exactly, everything else by math-verify."""

import logging
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from nemo_rl.environments.answers import marked_answer
from nemo_rl.environments.cleaning import changed_numbers, clean, numbers, without_markdown
from nemo_rl.environments.grading import Grade

# it warns on every call that its own alarm is off; the grader pool's deadline takes its place
logging.getLogger("math_verify").setLevel(logging.ERROR)

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_LOOSE_ENDS = " \t\n*/^(-+"  # math-verify takes the Markdown rule below a number for a part of it
_BASE = re.compile(r"(?<=\d)_\s*\{?\s*(?:\\text\s*\{)?\s*(\w+)")
_RATIO = re.compile(r"\d\s*(?::|\\colon)\s*\d")

# `clean` takes units off: math-verify's own list has "less", and c, d, h, s and t, as in 3c
_NORMALIZATION = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="all")
_TEXT = LatexExtractionConfig(normalization_config=_NORMALIZATION)
_BOX = LatexExtractionConfig(normalization_config=_NORMALIZATION, boxed_match_priority=0)


def grade(response: str, metadata: Mapping[str, Any]) -> Grade:
    """1.0 if the response's answer equals `metadata["ground_truth"]`, else 0.0.

    Without a mark (box, tag, '####') the answer is whatever math-verify finds in the text.
    """
    truth = str(metadata["ground_truth"])
    gold = clean(marked_answer(truth) or truth)  # a ground truth may be a whole worked solution
    marked = marked_answer(response)
    if marked is None:
        return _grade_unmarked(gold, without_markdown(response))
    return Grade(float(bool(marked) and is_equal(gold, clean(marked))), marked or None)


def _grade_unmarked(gold: str, text: str) -> Grade:
    # only its first choice: the next one would be some other number of the text
    found = _parse(text, _TEXT, extraction_mode="first_match")
    if not found:
        return Grade(0.0)
    answer = clean(str(found[-1]).rstrip(_LOOSE_ENDS))
    number = as_number(answer)
    if number is not None and _is_changed(abs(number), text):
        return Grade(0.0, answer)
    return Grade(float(is_equal(gold, answer, found)), answer)


def _is_changed(number: Fraction, text: str) -> bool:
    """Does what follows the number make it another one, where math-verify may have read it?

    That is behind "answer", else where it stands last.
    """
    lines = [line for line in text.splitlines() if number in map(as_number, numbers(line))]
    read = [line for line in lines if "answer" in line.lower()] + lines[-1:]
    return any(number in map(as_number, changed_numbers(line)) for line in read)


def is_equal(gold: str, answer: str, parsed: Sequence[Any] = ()) -> bool:
    """Equality of two cleaned answers; `parsed` is the answer as math-verify found it in its text, if it did."""
    percent = answer.endswith("%") and not gold.endswith("%")
    gold, answer = (re.sub(r"\s*\\?%$", "", text) for text in (gold, answer))
    gold_number, answer_number = as_number(gold), as_number(answer)
    if gold_number is not None and answer_number is not None:
        return answer_number == gold_number or (percent and answer_number / 100 == gold_number)
    if not _same_bases(gold, answer):
        return False
    if _RATIO.search(gold) or _RATIO.search(answer):  # math-verify reads no further than the colon
        return "".join(gold.split()) == "".join(answer.split())
    answer = _with_brackets_of(gold, answer)
    if _brackets(gold) and _brackets(answer) and _brackets(gold) != _brackets(answer):
        return False
    return bool(verify(_parse_boxed(gold), [*_parse_boxed(answer), *parsed], timeout_seconds=None))


def as_number(text: str) -> Fraction | None:
    """A plain decimal number, thousands separators allowed, as an exact fraction."""
    if not any(char.isdigit() for char in text) or not _NUMBER.fullmatch(text):
        return None
    return Fraction(text.replace(",", ""))


def _same_bases(gold: str, answer: str) -> bool:
    """math-verify reads 101_2 as 101. The truth's base may be left out, as the problem states it, but not changed."""
    bases = _BASE.findall(answer)
    return not bases or bases == _BASE.findall(gold)


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
    return _parse(f"\\boxed{{{text}}}", _BOX)


def _parse(
    text: str, latex: LatexExtractionConfig, extraction_mode: Literal["first_match", "any_match"] = "any_match"
) -> list[Any]:
    return list(parse(text, [latex, ExprExtractionConfig()], extraction_mode=extraction_mode, parsing_timeout=None))
