"""Lists of models: a YAML file with the searches of one command, ``sktune search --models list.yaml``.

version: 1
models:
  - model: llama
    batch: 1
    trials: 20
  - {model: deepseek-v3, study: deep, context: 4096}
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, create_model

from sktune.core.documents import Document, read_document
from sktune.core.errors import BadInputError
from sktune.core.search_options import OPTIONS, fields_of
from sktune.study.study import folder_name
from sktune.tuning.dies import kind_of
from sktune.tuning.request import Request

if TYPE_CHECKING:
    Entry = Document
else:
    _KEYS = {name: (option.kind | None, None) for name, option in OPTIONS.items() if option.in_lists}
    Entry = create_model("Entry", __base__=Document, **_KEYS | {"model": (str, Field(min_length=1))})
"""One search. Keys are the options of ``sktune search``, and replace those of the command."""


class ModelList(Document):
    """The file."""

    version: Literal[1]
    models: list[Entry] = Field(min_length=1)


def read_models(path: Path, base: Request) -> tuple[Request, ...]:
    """Return the requests of a list, each with the name of its study; ``base`` has the options of the command.

    Raises:
        BadInputError: the file is wrong, two searches have one study, or they need different kinds of dies.
    """
    requests = []
    for number, entry in enumerate(read_document(path, ModelList, BadInputError).models, 1):
        given = entry.model_dump(exclude_none=True)
        try:
            request = replace(base, **fields_of(given))
            requests.append(replace(request, study=request.study or request.target()[0].study_name))
        except BadInputError as failure:
            raise type(failure)(f"{path}: model {number} ({given['model']}): {failure}") from failure
    _check(path, requests)
    return tuple(requests)


def _check(path: Path, requests: Sequence[Request]) -> None:
    numbers: dict[str, int] = {}
    for number, request in enumerate(requests, 1):
        other = numbers.setdefault(folder_name(request.study or ""), number)
        if other != number:
            raise BadInputError(
                f"{path}: models {other} and {number} have the same study {request.study!r}; give one another `study:`"
            )
    kinds = {kind_of(request.target()[0]): request.model for request in requests}
    if requests[0].is_shared and len(kinds) > 1:
        (one, first), (another, second), *_ = kinds.items()
        raise BadInputError(
            f"{path}: {first} runs on dies of kind {one!r} and {second} on {another!r}, which cannot be divided; "
            "write a list for each"
        )
