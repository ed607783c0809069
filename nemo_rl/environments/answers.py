"""Finds the final answer in a response."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s{}$\\.,;]+))")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# Markdown's fourth level of headings has the same mark, so what follows must look like an answer: a number that is not
# a heading's own ("1. First", "1st"), LaTeX, a formula, or the text's last word
_HASHES = re.compile(
    r"""(?<!\#)\#{4}(?!\#)[ \t]*(
        [*_`~$€£¥₹₩(\[{|+\-−\\ ]*                           # emphasis, money, brackets, a sign
        (?: \.?\d (?! \d*(?:[.):][ \t*_]+\S | st\b | nd\b | rd\b | th\b) )
          | (?<=\\)[A-Za-z]+
          | (?:sqrt|sin|cos|tan|log|ln|exp|pi|[A-Z]{2,}(?=_)|[A-Za-z]) (?=[ \t]*(?:[-+*/^=<>_(,)$\]}\\|] | $))
          | [√π∞] )
        [^\n]*
        | [*_`]*[A-Za-z]+[*_`.]*(?=\s*\Z)
    )""",
    re.VERBOSE | re.MULTILINE,
)


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
