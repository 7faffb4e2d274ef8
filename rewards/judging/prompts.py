"""Questions to a judge.

In: templates with names in braces, and their values. Out: texts. Only known names are replaced, and
values are not looked at again, so that braces in answers stay what they are.
"""

import re
from collections.abc import Mapping

from rewards.judging.options import Options

RULES: Mapping[str, str] = {
    "general": "Judge whether it is correct, complete and helpful. Its length and its tone do not "
    "count.",
    "math": "Judge the final answer alone. It has to be equal to the right one; another form of "
    "the same number or formula is fine.",
    "code": "Judge whether the program does what is asked in every case, errors and limits "
    "included. Its style does not count.",
    "writing": "Judge how well it does what is asked: content, structure, language. Length by "
    "itself is no merit.",
}
"""Criteria of a good response, by domain."""

_POINTWISE = """\
A response to a question is judged by a reference. {rule}

[Question]
{question}

[Reference]
{reference}

[Response]
{response}

"""
_PAIRWISE = """\
Two responses to a question are compared. {rule}

[Question]
{question}

[Response A]
{first}

[Response B]
{second}

Is response A better than response B? Say one word, {yes} or {no}."""
_FREE = """\
A response to a question is judged. {rule}

[Question]
{question}

[Response]
{response}

Say in a few sentences what is good and what is wrong. Then write, on a line of its own, "Score: "
and a number from {min} (worst) to {max} (best)."""
_WORD = "Is the response right? Say one word, {yes} or {no}."
_NUMBER = 'Write "Score: " and a number from {min} (worst) to {max} (as good as the reference).'
_BEGUN = "\n\nAnswer:"
"""Beginning of the answer, for a model that continues a text."""
_NAME = re.compile(r"\{(\w+)\}")


def template_of(options: Options) -> str:
    """The template of these options."""
    if options.prompt is not None:
        return options.prompt
    pointwise = _POINTWISE + (_WORD if options.reading == "yes_no" else _NUMBER)
    text = {"pointwise": pointwise, "pairwise": _PAIRWISE, "free": _FREE}[options.mode]
    return text + _BEGUN if options.api == "completions" else text


def names_in(template: str) -> frozenset[str]:
    """The names that a template has in braces."""
    return frozenset(_NAME.findall(template))


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with its names replaced, those that are known."""
    return _NAME.sub(lambda match: values.get(match[1], match[0]), template)


def rule_of(options: Options, domain: str) -> str:
    """The rule of a domain, else the general one."""
    rules = {**RULES, **options.rules}
    return rules.get(domain, rules["general"])
