"""The one codec of values: dataclasses become plain values for JSON, and are read back, as their fields' types say.

A type whose stored form differs from its fields says so beside the field, with pydantic's annotations.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


def _new_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(_new_adapter)


def encoded(value: Any, kind: Any = None) -> Any:
    """Return a value of the type ``kind``, by default its class, as plain values; figures may be infinite or NaN."""
    return _adapter(kind or type(value)).dump_python(value, mode="json")


def decoded(kind: type[T], values: Any) -> T:
    """Inverse of ``encoded``; unknown keys are left out, and missing ones have their defaults.

    Raises:
        ValidationError: the values do not have the type, with what is wrong.
    """
    read: T = _adapter(kind).validate_python(values)
    return read
