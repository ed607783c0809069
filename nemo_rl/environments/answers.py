"""Finds the final answer in a response."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s{}$\\.,;]+))")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")


def last_box(text: str) -> str | None:
    r"""The content of the last \boxed{...}; "" if that box was never closed, None if there is no box."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    match = boxes[-1]
    if match["bare"] is not None:
        return match["bare"]
    depth = 1
    for position in range(match.end(), len(text)):
        escaped = text[position - 1] == "\\"
        if text[position] in "{}" and not escaped:
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return text[match.end() : position].strip()
    return ""


def marked_answer(text: str) -> str | None:
    """What the response marks as its answer: the last box, else the last <answer> tag, else the last '#### ...'."""
    box = last_box(text)
    if box is not None:
        return box
    for pattern in (_TAG, _HASHES):
        found = pattern.findall(text)
        if found:
            return str(found[-1]).strip()
    return None
