"""What mkdocs does besides: links out of the folder become paths, and pages load nothing from elsewhere."""

import re
from typing import Any

from mkdocs.exceptions import PluginError

LEAVES = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?!docs/)((?:benchmarks|sktune|tests|examples|search_spaces|README)[^)]*)\)"
)
"""A link from a page to a file of the repository that is no page."""
LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files that the site does not have by their path."""
    return LEAVES.sub(r"\1 (`\2`)", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that needs a network."""
    if found := LOADS.search(output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {found.group()}")
    return output
