"""Base of the configuration models: strict, frozen, with attribute docstrings."""

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Unknown keys and wrong types are errors; values never change after loading."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
