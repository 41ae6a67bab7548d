"""The one codec of values: dataclasses become plain values for JSON, and are read back, as their fields' types say.

A type whose stored form differs from its fields says so beside the field, with pydantic's annotations.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from pydantic import Field, GetCoreSchemaHandler, SerializerFunctionWrapHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")

LEFT_OUT_IF_EMPTY = Field(exclude_if=lambda value: not value)
"""Annotation of a field that has no key while it is empty."""
LEFT_OUT_IF_NONE = Field(exclude_if=lambda value: value is None)
"""Annotation of a field that has no key while it is None."""


def _new_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(_new_adapter)


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


def fields_of_value(value: Any) -> dict[str, Any]:
    """Return the values of a dataclass's fields by name, as they are: for another class that has them, too."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


class AsList:
    """Annotation of a dataclass: the list of its fields' values, without those at the end that are their defaults.

    Hundreds of trials may have hundreds of such values each: their keys are not repeated.
    """

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads and writes it."""
        of_kind = fields(kind)

        def named(values: Any) -> Any:
            is_list = isinstance(values, list | tuple)
            return {field.name: value for field, value in zip(of_kind, values, strict=False)} if is_list else values

        def listed(value: Any, encode: SerializerFunctionWrapHandler) -> list[Any]:
            values = list(encode(value).values())
            while values and getattr(value, of_kind[len(values) - 1].name) == of_kind[len(values) - 1].default:
                values.pop()
            return values

        return core_schema.no_info_before_validator_function(
            named, handler(kind), serialization=core_schema.wrap_serializer_function_ser_schema(listed)
        )
