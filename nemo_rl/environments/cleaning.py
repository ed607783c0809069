r"""Takes off an answer what does not change its value: emphasis, money signs, digit separators, units.

A word after a number is a unit unless it is known to change the number ("5 million", "5 fifths", "5 below zero") or
to join it to another one. Such an answer stays as it is: math-verify reads its words as symbols, so that it equals
nothing but itself.
"""

import re

_HEADING_NUMBER = re.compile(r"^#+[ \t]+[*_]*(?:[A-Za-z]+[ \t]+)?\d+[.:)](?=[ \t*_]+\S)", re.MULTILINE)
_EMPHASIS = re.compile(r"(?<![\w)}\]*])(\*{2,3}|(?<![\d)}\]] )\*|_{1,3}|`+)(?=\S)(.{1,200}?)(?<=\S)\1(?![\w({*])")
_MONEY = re.compile(r"\\?\$|[€£¥₹₩]")
_DIGIT_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|\\[,;!: ]|~|(?<=\d) )(?=\d{3}(?!\d))")
_PERCENT = re.compile(r"(?<=\d)\s*(?:\\text\s*\{\s*percent\s*\}|percent)$")
_ALTERNATIVE = re.compile(r"\(\s*or\b([^()]*)\)")

# two letters are more often a product of variables than a unit
_SHORT_UNIT = "(?:[cdkmn]m|[km]g|lb|oz|m[lL]|ft|in|yd|mi|hr|[ap]m|sq|cu|of|is)"
_POWER = r"(?:\^\{?-?\d\}?|[²³])?"
_GAP = r"(?:\s|\\[,;: ])"
_UNITS = re.compile(
    r"(?<=[\w.)}])(?:"
    rf"(?:(?:{_GAP}*/)?{_GAP}*\\(?:text|mathrm|textbf|textit|mbox)\s*\{{[A-Za-z\s./()²³-]+\}}{_POWER})+"
    r"|\s*(?:°|\^\s*\{?\s*\\circ\s*\}?)\s*[CF]?"
    r"|(?<=[\d.)}])\s+\([A-Za-z][A-Za-z .]{2,}\)"
    rf"|(?<=[\d.)}}])(?:{_GAP}+(?:[A-Za-z]{{3,}}|{_SHORT_UNIT}\b|m(?=/))|{_SHORT_UNIT}\b)"
    rf"(?:/[A-Za-z]+)?{_POWER}\.?(?:\s+[A-Za-z]{{2,}}\.?)*"
    r")$"
)

_CHANGES_THE_VALUE = (
    r"hundreds?|thousands?|\w*illions?|dozens?|scores?|gross|grand|lakhs?|crores?|mln|bn|(?-i:[kKMBT])"
    r"|hal(?:f|ves)|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|\w+teenth"
    r"|\w+tieth|hundredth|thousandth|\w*illionth)s?|permille|basis"
    r"|factorials?|squared|cubed|mod|modulo|base|twice|double[ds]?|triple[ds]?"
    r"|less|fewer|below|under|negative|minus"
)
_NUMBER_WORDS = (
    r"zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen"
    r"|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
)
_JOINS = r"and|or|nor|not|to|over|by|plus|times|divided|pi|sqrt|percent\w*|pct"
_VARIABLE = r"\{\s*(?-i:[^ghlmsACFHJLNVW])\s*\}"  # one letter in \text that is no unit
_NOT_UNITS = re.compile(rf"\b(?:{_CHANGES_THE_VALUE}|{_NUMBER_WORDS}|{_JOINS})\b|{_VARIABLE}", re.IGNORECASE)

_NUMBER = r"(?:\d++(?:,\d{3})*+(?:\.\d++)?+|\.\d++)"
_CHANGED_NUMBER = re.compile(
    rf"(?<![\w.,])({_NUMBER})"
    r"(?:(?:[ \t\xa0$~)}\](*_`-]|\\[,;: ])*(?:\\(?:text\w*|mathrm|mbox)\{[ (]*)?"
    rf"(?:(?:and |per )?(?:an? )?(?:{_CHANGES_THE_VALUE})|or \$?\d\S*)\b"
    r"| ?[½⅓⅔¼¾⅛²³√π]|e[+-]?\d|_\{?\w|\^(?!\{?\\circ)|\(|:\d|(?: ?[-+*/] ?)?(?![mgshlai])[a-z]\b(?! ?\$?\d)"
    r"| ?\\(?:sqrt|pi|frac|times|cdot|div|pm|log|ln|sin|cos)|\\text\{ *,)",
    re.IGNORECASE,
)


def without_markdown(text: str) -> str:
    """Without **bold**, *italic*, _italic_, `code` and the numbers of headings; 2*3*4 and 2**3 stay."""
    return _EMPHASIS.sub(r"\2", _HEADING_NUMBER.sub("", text))


def clean(text: str) -> str:
    """Without all that this module is for, and without white space and full stops at the ends."""
    text = " ".join(_MONEY.sub("", without_markdown(text)).split()).strip(" *`_~")
    text = text.removeprefix("\\(").removesuffix("\\)").strip()
    text = _DIGIT_SEPARATOR.sub(",", text).replace("~", " ")
    text = _ALTERNATIVE.sub(r" or\1", text).rstrip(".").rstrip()
    while (unit := _UNITS.search(text)) and not _NOT_UNITS.search(unit.group()):
        text = text[: unit.start()].rstrip(".").rstrip()
    return _PERCENT.sub(r"\\%", text).strip()


def numbers(text: str) -> list[str]:
    """All the numbers in a text, without signs."""
    return re.findall(_NUMBER, text)


def changed_numbers(text: str) -> list[str]:
    """Those that do not stand for themselves, as the 5 of "5 million", "5x", "5_7" or "5 or 6"."""
    return _CHANGED_NUMBER.findall(text)
