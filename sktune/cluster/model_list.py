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
from typing import Literal

from pydantic import Field

from sktune.core.documents import Document, read_document
from sktune.core.errors import BadInputError
from sktune.engines.dies import kind_of
from sktune.study.study import folder_name
from sktune.tuning.request import Request
from sktune.tuning.time_budget import parse_duration


class Entry(Document):
    """One search. Keys are the options of ``sktune search``, and replace those of the command."""

    model: str = Field(min_length=1)
    study: str | None = None
    trials: int | None = None
    time_budget: str | None = None
    until_converged: bool | None = None
    strategy: str | None = None
    space: Path | None = None
    try_inexact: bool | None = None
    proxy_layers: int | None = None
    compile_timeout: float | None = None
    verify_steps: int | None = None
    scale: str | None = None
    weights: Path | None = None
    trust: bool | None = None
    dtype: str | None = None
    backend: str | None = None
    device: str | None = None
    batch: int | None = None
    context: int | None = None
    constants: Path | None = None
    profile: Path | None = None
    seed: int | None = None

    def request(self, base: Request) -> Request:
        """Return the request of this search; ``base`` has what is not given."""
        given = self.model_dump(exclude_none=True)
        if (budget := given.pop("time_budget", None)) is not None:
            given["time_budget_s"] = parse_duration(budget)
        if (timeout_s := given.pop("compile_timeout", None)) is not None:
            given["compile_timeout_s"] = timeout_s
        return replace(base, **given)


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
        try:
            request = entry.request(base)
            requests.append(replace(request, study=request.study or request.target()[0].study_name))
        except BadInputError as failure:
            raise type(failure)(f"{path}: model {number} ({entry.model}): {failure}") from failure
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
