"""HTML and SVG as text: every name, value and text that is put in is escaped."""

from collections.abc import Iterable
from typing import Any

from markupsafe import Markup, escape

from sktune.core.printable import printable

EMPTY = Markup("")
_VOID = frozenset({"br", "input", "meta", "link"})


def element(tag: str, *content: object, **attributes: Any) -> Markup:
    """Return an element; ``class_`` is the attribute ``class``, and ``data_t`` is ``data-t``.

    Attributes that are None or False are left out, and one that is True has no value.
    """
    head = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        head.append(key if value is True else f'{key}="{_text(value)}"')
    if tag in _VOID:
        return Markup(f"<{' '.join(head)}>")  # noqa: S704 - its parts are escaped
    inside = joined(content)
    if not inside and tag not in _WITH_END:
        return Markup(f"<{' '.join(head)}/>")  # noqa: S704
    return Markup(f"<{' '.join(head)}>{inside}</{tag}>")  # noqa: S704


_WITH_END = frozenset(
    {"div", "span", "p", "a", "b", "td", "th", "tr", "select", "option", "button", "section", "script", "style", "pre"}
)
"""HTML elements that need an end tag even if they are empty; those of SVG do not."""


def joined(content: Iterable[object]) -> Markup:
    """Return the content as text, escaped where it is not markup; None is left out."""
    return EMPTY.join(_text(each) for each in content if each is not None)


def _text(value: object) -> Markup:
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return Markup(number(value))  # noqa: S704
    return escape(printable(str(value)))


def number(value: float) -> str:
    """Return a coordinate with one decimal at most: tenths of a pixel."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def lines(*paths: Iterable[tuple[float, float]]) -> str:
    """Return the data of an SVG path through the points of each of ``paths``."""
    return "".join(
        ("M" if index == 0 else "L") + f"{number(x)} {number(y)}"
        for path in paths
        for index, (x, y) in enumerate(path)
    )  # fmt: skip
