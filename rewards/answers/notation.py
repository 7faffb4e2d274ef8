"""One way of writing for the many in which answers are typeset.

In: an answer as LaTeX, Markdown or plain text. Out: the same answer without dollar signs, fonts,
spacing and emphasis, with `\\frac{a}{b}` for every fraction and ASCII for every sign that has one.
Linear in the length of the text, and never an error.
"""

import re

_SIGNS = {
    "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\uff0d": "-",
    "\u00d7": "\\times ", "\u00b7": "\\cdot ", "\u22c5": "\\cdot ", "\u00f7": "/", "\uff0f": "/",
    "\u03c0": "\\pi ", "\u03b8": "\\theta ", "\u03b1": "\\alpha ", "\u03b2": "\\beta ",
    "\u221e": "\\infty ", "\u2264": "\\le ", "\u2265": "\\ge ", "\u2260": "\\ne ",
    "\u2248": "\\approx ", "\u00b1": "\\pm ", "\u2213": "\\mp ", "\u222a": "\\cup ",
    "\u2229": "\\cap ", "\u2208": "\\in ", "\u221a": "\\sqrt ", "\u2205": "\\emptyset ",
    "\u00b2": "^2", "\u00b3": "^3", "\u2074": "^4", "\u2032": "'", "\u2019": "'", "\u2018": "'",
    "\u201c": '"', "\u201d": '"', "\u27e8": "\\langle ", "\u27e9": "\\rangle ",
    "\u00bd": "\\frac{1}{2}", "\u00bc": "\\frac{1}{4}", "\u00be": "\\frac{3}{4}",
    "\u2153": "\\frac{1}{3}", "\u2154": "\\frac{2}{3}", "\u00ba": "\u00b0",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2007": " ", "\u200a": " ", "\u3000": " ",
    "\u200b": "", "\ufeff": "", "\u2044": "/", "\u3002": ". ", "\u3001": ", ",
}  # fmt: skip
# Full-width forms stand at a fixed distance from ASCII.
_TABLE = str.maketrans(
    {**{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}, **_SIGNS}
)

_STEPS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|boxed|fbox)(?![a-zA-Z])", ""),
        # A comma with a narrow space behind it, or in braces of its own, is part of a number.
        (r",\s*\\!\s*|\{\s*,\s*\}", ","),
        (r"\\!", ""),
        (r"(?<!\\)\\[,;: ]|~|\\q?quad|\\(?:thin|med|thick)space(?![a-zA-Z])", " "),
        (
            r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)|math(?:rm|bf|it|sf|tt)|mbox|hbox)\s*\{",
            r"\\text{",
        ),
        (r"\\text\s+\{", r"\\text{"),
        (r"\\text\{\s*\}", " "),
        (r"\\[cdt]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*([0-9a-zA-Z])", r"\\frac{\1}"),
        (r"(\\frac\{[^{}]*\})\s*([0-9a-zA-Z])", r"\1{\2}"),
        (r"(\\frac\{[^{}]*\})\s+\{", r"\1{"),
        (r"\\frac\s+\{", r"\\frac{"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\}|\\degree(?![a-zA-Z]))", "\u00b0"),
        (r"\\(?:degree|textdegree)(?![a-zA-Z])(?:\{\})?", "\u00b0"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:lbrace)(?![a-zA-Z])", r"\\{"),
        (r"\\(?:rbrace)(?![a-zA-Z])", r"\\}"),
        (r"\\%", "%"),
        (r"(?<=[0-9]) ?[xX] ?(?=10 ?\^)", r"\\times "),  # 3.2 x 10^5
        (r"\\?\$|(?<!\\)\\[()\[\]]", " "),
        (r"\s+", " "),
    )
)
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")
_REPEATING = re.compile(
    r"(?<![0-9.,])([0-9]{0,9})\.([0-9]{0,9})\\(?:overline|bar)\s*\{\s*([0-9]{1,9})\s*\}"
)
_EMPHASIS = re.compile(r"(\*\*\*|\*\*|__|\*|_|`)(?=\S)(.+?)(?<=\S)\1[.,:;]?")


def tidy(text: str) -> str:
    """The answer in its one way of writing."""
    text = text.translate(_TABLE).strip()
    while match := _EMPHASIS.fullmatch(text):
        text = match[2]
    if "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    for pattern, by in _STEPS:
        text = pattern.sub(by, text)
    text = _REPEATING.sub(_fraction, text)
    text = text.strip(" ").rstrip(" .,;:\\").lstrip(" :")
    while match := _EMPHASIS.fullmatch(text):
        text = match[2].strip()
    return text


def _fraction(repeating: re.Match[str]) -> str:
    """A decimal with a bar over the digits that repeat, as the fraction it is."""
    whole, fixed, digits = repeating.groups()
    above = int((whole or "0") + fixed + digits) - int((whole or "0") + fixed)
    return f"\\frac{{{above}}}{{{(10 ** len(digits) - 1) * 10 ** len(fixed)}}}"


def squeeze(text: str) -> str:
    """The text without blanks and without what only holds letters together."""
    return re.sub(r"\s+", "", unwrap_text(text))


def unwrap_text(text: str) -> str:
    """The text with `\\text{words}` as words."""
    return " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).split())


def bare_text(text: str) -> str:
    """Return the content of `\\text{red, blue}` or `\\text{350 students}`, but not of words."""
    match = re.fullmatch(r"\\text\{([^{}]*)\}", text)
    if match and re.search(r"^\s*[-+.]?[0-9]|,|\b(?:and|or)\b", match[1]):
        return match[1].strip()
    return text
