"""Hooks of mkdocs: links to files outside of ``docs`` become paths, and no page may load anything from the network."""

import re
from typing import Any

from mkdocs.exceptions import PluginError

LEAVES = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?!docs/)((?:benchmarks|sktune|tests|examples|search_spaces|README)[^)]*)\)"
)
"""A link from a page to a file of the repository that is not a page."""
LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links to files that the site does not have with their paths."""
    return LEAVES.sub(r"\1 (`\2`)", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that needs a network."""
    if match := LOADS.search(output):
        raise PluginError(f"{page.file.src_uri} loads from the network: {match.group()}")
    return output
