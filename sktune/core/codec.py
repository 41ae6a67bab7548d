"""The one codec of values: dataclasses become plain values for JSON, and are read back, as their fields' types say.

A type whose stored form differs from its fields says so beside the field, with pydantic's annotations.
"""

from dataclasses import fields
from functools import cache
from typing import Any, Self, TypeVar

from pydantic import Field, GetCoreSchemaHandler, SerializerFunctionWrapHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")

LEFT_OUT_IF_EMPTY = Field(exclude_if=lambda value: not value)
"""Annotation of a field that has no key while it is empty."""


def encoded(value: Any, kind: Any = None) -> Any:
    """Return a value of the type ``kind``, by default its class, as plain values; figures may be infinite or NaN."""
    return _adapter(kind or type(value)).dump_python(value, mode="json", by_alias=True)


def decoded(kind: type[T], values: Any) -> T:
    """Inverse of ``encoded``; unknown keys are left out, and missing ones have their defaults.

    Raises:
        ValidationError: the values do not have the type, with what is wrong.
    """
    read: T = _adapter(kind).validate_python(values)
    return read


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class Encodable:
    """A dataclass that is encoded by its own methods."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        values: dict[str, Any] = encoded(self)
        return values

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Inverse of ``to_dict``."""
        return decoded(cls, values)


class AsList:
    """Annotation of a dataclass: the list of its fields' values, without those at the end that are their defaults.

    Hundreds of trials may have hundreds of such values each: their keys are not repeated.
    """

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads and writes it."""
        defaults = [(field.name, field.default) for field in fields(kind)]

        def named(values: Any) -> Any:
            is_list = isinstance(values, list | tuple)
            return {name: value for (name, _), value in zip(defaults, values, strict=False)} if is_list else values

        def listed(value: Any, encode: SerializerFunctionWrapHandler) -> list[Any]:
            values = encode(value)
            while values and getattr(value, defaults[len(values) - 1][0]) == defaults[len(values) - 1][1]:
                del values[defaults[len(values) - 1][0]]
            return list(values.values())

        return core_schema.no_info_before_validator_function(
            named, handler(kind), serialization=core_schema.wrap_serializer_function_ser_schema(listed)
        )
