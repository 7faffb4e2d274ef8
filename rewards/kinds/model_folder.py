"""The reward model that a kind asks: which folder a recipe names.

In: the option `model` of a source. Out: the folder. A recipe that names none is told how to make
one.
"""

from headrace.errors import UserError


def model_folder(given: object, kind: str, model: str) -> str:
    """The folder, UserError where there is none; `model` is what the kind needs, in words."""
    if isinstance(given, str):
        return given
    raise UserError(
        f"kind {kind!r} needs a {model}: name its folder in options.model; "
        "`headrace reward train` makes one"
    )
