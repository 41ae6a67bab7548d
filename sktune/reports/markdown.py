"""Markdown that holds what others wrote: names of models, compilers' messages, values of a space."""


def table_cell(text: str) -> str:
    """Return ``text`` as it may stand in a Markdown table: one line, no markup of its own."""
    flat = " ".join(str(text).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|").replace("`", "'")
