"""Markdown with text from elsewhere: names of models, compilers' messages, values of a space."""


def table_cell(text: str) -> str:
    """Return ``text`` in a form that is safe in a Markdown table: one line, without markup."""
    flat = " ".join(str(text).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|").replace("`", "'")
