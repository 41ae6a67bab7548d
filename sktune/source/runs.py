"""What a step runs: suites, their statements, and the calls in these.

A *suite* is a list of statements at one depth. The same suite runs once for each layer; each time is a separate
``SuiteRun``, so that a scope of layer 7 is found in layer 7's run of the layer's ``forward``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from sktune.source.classes import SourceClass


@dataclass(frozen=True, eq=False)
class Function:
    """A method, and the class that it belongs to."""

    owner: SourceClass
    node: cst.FunctionDef

    @property
    def name(self) -> str:
        """Its name with that of the class."""
        return f"{self.owner.name}.{self.node.name.value}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass of a loop inside a layer, as over its two attentions.

    Attributes:
        index: the loop variable, empty if the loop has none that counts.
        number: of this pass, from 0.
        count: of all passes.
    """

    index: str
    number: int
    count: int


@dataclass(frozen=True, eq=False)
class StatementCall:
    """One call that a statement makes: of a unit, or of code that is followed.

    Attributes:
        firsts, lasts: modules that may run first and last in it; several only where it branches.
        runs: of the suites inside; empty for a unit.
        exits: modules that may run last before a ``return`` in these suites.
        is_certain: whether all these suites run; else one of them does, or perhaps none.
    """

    firsts: frozenset[str]
    lasts: frozenset[str]
    runs: "tuple[SuiteRun, ...]" = ()
    exits: frozenset[str] = frozenset()
    is_certain: bool = True


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement and the steps that it runs, in order; and whether decode may leave its suite in it."""

    node: cst.BaseStatement
    steps: tuple[StatementCall, ...]
    may_leave: bool = False

    @property
    def firsts(self) -> frozenset[str]:
        return self.steps[0].firsts if self.steps else frozenset()

    @property
    def lasts(self) -> frozenset[str]:
        return self.steps[-1].lasts if self.steps else frozenset()


@dataclass(frozen=True, eq=False)
class SuiteRun:
    """One run of a suite.

    Attributes:
        suite: the list of statements, a libcst node.
        function: that contains it.
        layer: the decoder layer that runs, None outside of layers.
        index: the expression of the layer's number, if the suite is in a loop over layers that knows it.
        statements: of the suite.
        prefix: of the modules that the function's class contains, as ``model.layers.3.self_attn.``.
        turn: of the loop inside the layer that the suite is in.
        is_repeated: whether the suite is in a loop outside of layers that is followed only once.
    """

    suite: cst.BaseSuite
    function: Function
    layer: int | None
    index: str | None
    statements: tuple[Statement, ...]
    prefix: str = ""
    turn: Turn | None = None
    is_repeated: bool = False

    @property
    def firsts(self) -> frozenset[str]:
        return next((each.firsts for each in self.statements if each.steps), frozenset())

    @property
    def lasts(self) -> frozenset[str]:
        return next((each.lasts for each in reversed(self.statements) if each.steps), frozenset()) | self.exits

    @property
    def exits(self) -> frozenset[str]:
        return frozenset().union(*(step.exits for each in self.statements for step in each.steps))

    def walk(self, depth: int = 0) -> "Iterator[tuple[int, SuiteRun]]":
        """Yield this run and all inside it, with their depths."""
        yield depth, self
        for statement in self.statements:
            for step in statement.steps:
                for run in step.runs:
                    yield from run.walk(depth + 1)
