"""Runs a model's source symbolically: every value that the file does not make itself is an expression.

All imports but the standard library are stubs, so no weight, kernel or torch is needed. Two runs with equal results
have the same data flow. Run as a program: JSON on standard input (see ``main``), JSON on standard output.
"""

import dis
import hashlib
import importlib.abc
import importlib.machinery
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

PACKAGE = "field_models"
REAL = frozenset(sys.stdlib_module_names)


class Traced:
    """A value that is known by how it was computed."""

    def __init__(self, text: str, name: str = "") -> None:
        self.__dict__.update(_text=hashlib.sha256(text.encode()).hexdigest()[:16], _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return SPECIAL.get(name) or Traced(f"{self._text}.{name}", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and isinstance(arguments[0], type | types.FunctionType):
            return arguments[0]  # a decorator
        text = f"{self._text}({shown(arguments)}, {shown(named)})"
        return Leaf(text) if self._name[:1].isupper() else Traced(text)

    def __getitem__(self, index: Any) -> Any:
        return Traced(f"{self._text}[{shown(index)}]")

    def __setitem__(self, index: Any, value: Any) -> None:
        self.__dict__["_text"] = Traced(f"{self._text}[{shown(index)}]={shown(value)}")._text

    def __iter__(self) -> Iterator[Any]:
        """Yield as many values as the caller unpacks; a loop runs over none."""
        frame = sys._getframe(1)
        here = (each for each in dis.get_instructions(frame.f_code) if each.offset == frame.f_lasti)
        at = next(here, None)
        count = at.arg if at and at.opname == "UNPACK_SEQUENCE" else 0
        return iter([self[index] for index in range(count or 0)])

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (Module,)

    def __bool__(self) -> bool:
        return False

    def __index__(self) -> int:
        return 1

    __len__ = __int__ = __index__

    def __float__(self) -> float:
        return 1.0

    def __contains__(self, item: Any) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        return None

    def __hash__(self) -> int:
        return hash(self._text)

    def __format__(self, spec: str) -> str:
        return "?"


def _binary(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: Traced(f"{name}({self._text}, {shown(other)})")


for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
):  # fmt: skip
    setattr(Traced, f"__{_name}__", _binary(_name))
    setattr(Traced, f"__r{_name}__", _binary(f"r{_name}"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Traced, f"__{_name}__", _binary(_name))
for _name in ("neg", "pos", "invert"):
    setattr(Traced, f"__{_name}__", lambda self, name=_name: Traced(f"{name}({self._text})"))


class Leaf(Traced):
    """A module, or another object of a class that is not followed; its calls are recorded."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return Method(f"{self._text}.{name}", self) if isinstance(value, Traced) else value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        record(self)
        return Traced(f"{self._text}({shown(arguments)}, {shown(named)})")


class Method(Traced):
    """An attribute of a leaf."""

    def __init__(self, text: str, owner: Leaf) -> None:
        super().__init__(text)
        self.__dict__["_owner"] = owner

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        record(self._owner)
        return super().__call__(*arguments, **named)


class Module:
    """A module of the file that is followed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.forward(*arguments, **named)

    def register_buffer(self, name: str, value: Any, **others: Any) -> None:
        """Keep a buffer."""
        setattr(self, name, value)

    register_parameter = register_buffer

    def __getattr__(self, name: str) -> Any:
        if name in UNITS or name.startswith("__"):
            raise AttributeError(name)
        return Traced(f"attribute {name}", name.lower())


class ModuleList(list):  # type: ignore[type-arg]
    """A list of modules."""


class ModuleDict(dict):  # type: ignore[type-arg]
    """Modules by name."""


class Given(dict):  # type: ignore[type-arg]
    """What a program gives its model: a value by attribute or key; what it lacks is an expression."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __missing__(self, name: str) -> Any:
        if name == "custom_params":  # the recipes' configuration class takes it as empty
            return Given()
        return Traced(f"given {name}", str(name))


def given(value: Any) -> Any:
    """Return nested mappings as ``Given``."""
    return Given({key: given(each) for key, each in value.items()}) if isinstance(value, Mapping) else value


def shown(value: Any) -> str:
    """Return a text that is equal for equal values."""
    if isinstance(value, Traced):
        return str(value._text)
    if isinstance(value, Given):
        return "given"  # what a model reads from it is compared by its effect
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shown(each)}' for key, each in value.items())}}}"
    if isinstance(value, slice):
        return f"{shown(value.start)}:{shown(value.stop)}:{shown(value.step)}"
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__


OPEN: list[str] = []
SEEN: list[tuple[str, tuple[str, ...]]] = []
NAMES: dict[int, str] = {}
"""Paths of the modules, by identity."""
UNITS: set[str] = set()
"""Names of the layer's modules: a layer that lacks one must seem to."""


def record(leaf: Traced) -> None:
    """Note that a method of a module is called, and in which scopes."""
    if name := NAMES.get(id(leaf)):
        SEEN.append((name, tuple(OPEN)))


@contextmanager
def superkernel_scope(enable: Any, scope: str, options: str = "") -> Iterator[None]:
    """Stand in for the recipes' helper."""
    assert isinstance(enable, bool), f"the condition of {scope} is no truth value"
    if enable:
        OPEN.append(scope)
    yield
    if enable:
        OPEN.pop()


def scope_end(scope: str) -> None:
    """Stand in for what ends a scope of npugraph_ex."""
    assert OPEN.pop() == scope, f"{scope} ends, but another scope is open"


SPECIAL: dict[str, Any] = {
    "Module": Module, "ModuleList": ModuleList, "ModuleDict": ModuleDict, "superkernel_scope": superkernel_scope,
    "super_kernel_scope_begin": OPEN.append, "super_kernel_scope_end": scope_end,
}  # fmt: skip


class _Stub(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return SPECIAL.get(name) or Traced(f"{self.__name__}.{name}", name)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports everything but the standard library, and the packages in ``real``, as stubs."""

    def __init__(self, *real: str) -> None:
        self._real = REAL | set(real)

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a stub."""
        if name.partition(".")[0] in self._real:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the stub."""
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def named(root: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all modules below ``root`` with their paths."""
    inside = f"{path}." if path else ""
    children: Mapping[str, Any] = {}
    if isinstance(root, ModuleList):
        children = {str(index): each for index, each in enumerate(root)}
    elif isinstance(root, dict | Module):
        children = root if isinstance(root, dict) else vars(root)
    for name, child in children.items():
        if isinstance(child, Module | ModuleList | ModuleDict | Leaf):
            yield inside + str(name), child
            yield from named(child, inside + str(name))


def arguments_of(function: Callable[..., Any], values: Mapping[str, Any], first: int) -> dict[str, Any]:
    """Return an argument for each parameter without a default, and for those that have a value."""
    parameters = list(inspect.signature(function).parameters.values())[first:]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    # The recipes pass these on to all modules.
    extra = {"global_rank": 0, "hccl_comm_dict": Traced("groups")} if takes_any and first else {}
    plain = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return extra | {
        each.name: values[each.name] if each.name in values else Traced(f"argument {each.name}")
        for each in plain
        if each.name in values or each.default in (each.empty, None)
    }


def step(model: Any, *, is_prefill: bool) -> Mapping[str, Any]:
    """Run one step; return its result, the modules of which a method was called, and the scopes they were in."""
    NAMES.clear()
    NAMES.update({id(each): name for name, each in named(model)})
    SEEN.clear()
    metadata = Given(is_prefill=is_prefill)
    values = {
        "is_prefill": is_prefill,
        "forward_metadata": metadata,
        "attn_metadata": metadata,
        "inputs_embeds": None,
        "past_residual": None,
    }
    result = model.forward(**arguments_of(model.forward, values, 0))
    assert not OPEN
    return {"result": shown(result), "seen": [[name, list(scopes)] for name, scopes in SEEN]}


def loaded(source: Path, followed: set[str]) -> types.ModuleType:
    """Return the file as a module in which only the classes ``followed`` are real."""
    module = types.ModuleType(f"{PACKAGE}.{source.stem}")
    module.__dict__.update(__package__=PACKAGE, __file__=str(source), isinstance=is_instance)
    sys.modules[module.__name__] = module
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), module.__dict__)
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and issubclass(value, Module) and name not in followed and value is not Module:
            setattr(module, name, Traced(name, name))
        elif name in ("_init_rope", "_apply_attn_res"):  # they check values
            setattr(module, name, Traced(name))
    return module


def share(model: Any, filled: Sequence[str]) -> None:
    """Give a draft what it has from the model, and modules the buffers that are filled before the first step."""
    for module in (model, *(each for _, each in list(named(model)) if isinstance(each, Module))):
        for name in filled:
            if vars(module).get(name, model) is None:
                setattr(module, name, Traced(f"buffer {name}"))
        for name in ("embed_tokens", "lm_head"):
            if vars(module).get(name, model) is None:
                setattr(module, name, Leaf(name))


def is_instance(value: Any, kind: Any) -> bool:
    """Replace the builtin, which takes no expressions."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(isinstance(each, type) and isinstance(value, each) for each in kinds)


def main() -> None:
    """Run the model that standard input describes.

    ``source``; ``models``, the classes to run; ``followed``, those that they use; ``units``, the names of modules of a
    layer; ``filled``, buffers that are empty until the first step; ``settings``, the YAML; ``config``, of the model.
    """
    task = json.load(sys.stdin)
    sys.meta_path.insert(0, Stubs())
    # What started this process may have imported them.
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torch", "transformers", "numpy")]:
        del sys.modules[name]
    UNITS.update(task["units"])
    module = loaded(Path(task["source"]), {*task["models"], *task["followed"]})
    settings = given(task["settings"])
    values = {
        "config": Given(task["config"]),
        "infer_config": settings,
        "runner_settings": settings,
        "comm_manager": Traced("comm_manager"),
        "prefix": "model",
        "is_mtp": False,
        "layer_idx": task["config"].get("num_hidden_layers"),  # as the recipes number their drafts
    }
    found: dict[str, Any] = {}
    for name in task["models"]:
        owner = getattr(module, name)
        model = owner(**arguments_of(owner.__init__, values, 1))
        share(model, task["filled"])
        found[name] = {"decode": step(model, is_prefill=False), "prefill": step(model, is_prefill=True)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
