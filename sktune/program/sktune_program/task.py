"""Instructions to the ranks of a run, and to a program with a plan: ``task.json`` in the run's folder.

Format 1 is an object with ``format`` and the fields of ``RankTask``.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .errors import BadInputError
from .plan import MarkedScope, Option

HOSTS_VARIABLE, HOST_RANK_VARIABLE = "SKTUNE_HOSTS", "SKTUNE_HOST_RANK"
"""Environment variables of a program on several hosts: all addresses, and this host's number among them."""
TASK = "task.json"
FORMAT = 1
"""Version of ``task.json`` and of the reports (``reporter``)."""
VERIFIED_STEPS = 8
"""Decode steps whose outputs are compared in every run; the state is compared after the last of them."""


@dataclass(frozen=True)
class DecodeCall:
    """Identifies the decode step among a program's compiled calls.

    Attributes:
        function: the compiled function, e.g. ``DeepseekV3ForCausalLM.decode``.
        signature: types and shapes of its tensors; empty if every call of the function is a decode step.
    """

    function: str
    signature: str = ""

    def __str__(self) -> str:
        return f"{self.function}({self.signature})" if self.signature else self.function


@dataclass(frozen=True)
class RankTask:
    """Instructions to the ranks of a run.

    Attributes:
        inspects: run eagerly, and report each function that would be compiled, and the modules that it runs.
        backend: which backend's scopes the plan has: ``inductor``, ``npu`` or ``npugraph-ex``.
        model: class of the module tree; None for the tree that the compiled function belongs to.
        decode: the decode step; None until it is known.
        scopes: of the plan, in execution order.
        options: of the plan, for the whole step.
        turns: seed of the order in which steps run with and without the plan's scopes, drawn for each run; see
            ``is_baselines_turn``. None if the run does not alternate.
        steps: decode steps whose outputs are compared, at least ``VERIFIED_STEPS``.
        watches_state: report whether any state changes from the first to the last of ``VERIFIED_STEPS``.
        stands_in: import stand-ins of torch_npu and TorchAir where they are not installed (``stand_ins``).
    """

    inspects: bool
    backend: str
    model: str | None = None
    decode: DecodeCall | None = None
    scopes: tuple[MarkedScope, ...] = ()
    options: Mapping[str, Option] = field(default_factory=dict)
    turns: int | None = None
    steps: int = VERIFIED_STEPS
    watches_state: bool = False
    stands_in: bool = False

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write ``task.json``."""
        with open(os.path.join(folder, TASK), "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, **asdict(self)}, file)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> RankTask:
        """Inverse of ``write``.

        Raises:
            BadInputError: there is no task, or one of another format.
        """
        path = os.path.join(folder, TASK)
        try:
            with open(path, encoding="utf-8") as file:
                values = json.load(file)
            if not isinstance(values, dict):
                raise ValueError("it is no mapping")
        except OSError as failure:
            raise BadInputError(
                f"{path} cannot be read ({failure.strerror}); set SKTUNE_RUN to a run's folder"
            ) from failure
        except ValueError as failure:
            raise BadInputError(f"{path} is no task ({failure}); start the search again") from failure
        version = values.pop("format", None)
        if version != FORMAT:
            raise BadInputError(
                f"{path} has the format {version!r}, and the sktune_program on PYTHONPATH knows {FORMAT}; "
                "put the folder of the searching sktune there"
            )
        try:
            return cls._read(**values)
        except TypeError as failure:  # a key is missing, or one too many
            raise BadInputError(f"{path} is no task ({failure}); start the search again") from failure

    @classmethod
    def _read(cls, decode: Any, scopes: Any, **others: Any) -> RankTask:
        call = DecodeCall(**decode) if decode else None
        return cls(decode=call, scopes=tuple(MarkedScope(**scope) for scope in scopes), **others)


def is_baselines_turn(step: int, turns: int) -> bool:
    """Return whether decode step ``step``, counted from 0, of an alternating run has no scopes.

    The verified steps all have scopes. Then come blocks of four, ABBA or BAAB, by a fair coin for each block. The coins
    follow from the seed ``turns``, so they are equal in all ranks, which communicate within a step.
    """
    block, place = divmod(step - VERIFIED_STEPS, 4)
    coin = random.Random(f"{turns}-{block}").getrandbits(1)  # noqa: S311 - no secret
    return block >= 0 and (place in (1, 2)) == bool(coin)
