"""The base class of every section of the configuration."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A strict, frozen group of settings: unknown keys and wrong types are errors, nothing is coerced.

    Defaults are validated too, so a default that refers to another key ("${policy.precision}") cannot survive
    unresolved: such sections are built by `load_config` or `MasterConfig.model_validate`, which resolve references.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False)


def derived(reference: str, *, description: str, ge: int | None = None) -> Any:
    """A field whose default is the value of other keys, as in "${policy.precision}"."""
    return Field(default=reference, description=description, ge=ge)


def group(section: type[Section], description: str) -> Any:
    """A field that holds a section."""
    return Field(default_factory=section, description=description)


def is_section(annotation: Any) -> bool:
    """Whether a type annotation is a Section class."""
    return isinstance(annotation, type) and issubclass(annotation, Section)
