"""Markdown with text from elsewhere: names of models, compilers' messages, values of a space."""

import re

from sktune.core.printable import one_line


def table_cell(text: str) -> str:
    """Return ``text`` in a form that is safe in a Markdown table: one line, without markup."""
    flat = one_line(str(text)).replace("`", "'")
    escaped = re.sub(r"[\\\[\]|]", r"\\\g<0>", flat)  # a link of the text may run a script
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
