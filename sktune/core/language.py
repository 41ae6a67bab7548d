"""Languages of reports: the same sentences in English and in Chinese."""

from collections.abc import Mapping
from typing import Any, Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

Texts = Mapping[str, tuple[str, str]]
"""By key: English, then Chinese. Both take the same values."""


class Sentences:
    """The sentences of one language."""

    def __init__(self, texts: Texts, language: Language) -> None:
        self.language = language
        self._texts, self._index = texts, LANGUAGES.index(language)

    def __call__(self, key: str, **values: Any) -> str:
        """Return the sentence ``key`` with ``values`` in it."""
        return self._texts[key][self._index].format(**values)

    def counted(self, count: int, noun: str) -> str:
        """Return a number with the noun ``count.NOUN``, in English in the plural unless it is 1."""
        return self(f"count.{noun}" if count == 1 else f"count.{noun}s", count=f"{count:,}")
