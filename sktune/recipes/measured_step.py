"""What a YAML and the program's sources say about the decode step that would be measured: context, role, weights.

Sources, in hicann/cann-recipes-infer at fbc225d: executor/core/engine/execution_engine.py (the longest context),
executor/core/kv_cache/cache_utils.py (offline, the KV cache is sized by batch and context) and
executor/core/model_worker/model_worker.py (dummy weights, fewer layers).
"""

import ast
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sktune.core.files import source_text
from sktune.recipes.launch_scripts import is_placeholder, launch_scripts
from sktune.recipes.recipe_draft import RecipeDraft, by_key

_LENGTHS = ("input_truncated_len", "input_max_len")
"""Settings with the longest prompt in tokens, in newer and in older programs."""
_DEFAULT_PROMPT = Path("dataset", "default_prompt.json")
_FEWER_LAYERS = re.compile(r"""custom_params\[["']num_hidden_layers["']\]""")
LAYERS, DUMMY = "num_hidden_layers", "with_ckpt"


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """A program with the YAML that it is started with.

    Attributes:
        file: the YAML.
        settings: its values by dotted path.
        sources: the program's.
        root: the recipe's directory.
    """

    file: Path
    settings: Mapping[str, Any]
    sources: list[Path]
    root: Path

    def path_of(self, key: str, otherwise: str) -> str:
        """Return the dotted path of a setting, ``otherwise`` if the YAML does not have it."""
        return next((path for path in self.settings if path.rpartition(".")[2] == key), otherwise)

    def default_of(self, key: str) -> tuple[int, str] | None:
        """Return the number that the sources take if the YAML lacks a setting, and the place; None if none is seen."""
        found: dict[int, str] = {}
        for file in self.sources:
            if key in (text := source_text(file)):
                found |= {value: f"{file.relative_to(self.root)}:{line}" for value, line in _defaults(text, key)}
        return next(iter(found.items())) if len(found) == 1 else None


def add_measured_step(draft: RecipeDraft, program: MeasuredProgram) -> None:
    """Add what is known of the context, the role, the weights and of placeholders."""
    copy = by_key({**program.settings, **draft.values["yaml"].get("set", {})})
    length = _add_context(draft, program, copy)
    _add_role(draft, program, length)
    _add_weights(draft, program)
    scripts = launch_scripts(shlex.split(draft.values["command"]), program.root)
    places = [f"{each.text} ({each.file.relative_to(program.root)}:{each.line})" for each in scripts.placeholders()]
    places += [f"{path}: {value} (the YAML)" for path, value in program.settings.items() if is_placeholder(value)]
    if places:
        draft.to_do.append(f"fill in the placeholders, without which no run starts: {', '.join(places)}")


def _add_context(draft: RecipeDraft, program: MeasuredProgram, copy: Mapping[str, Any]) -> str:
    """Add the context of the measured steps; return the setting with the longest prompt, empty if it is not known."""
    key = next((key for key in _LENGTHS if isinstance(copy.get(key), int)), "")
    where = ""
    length = copy.get(key)
    if not key:
        for key in _LENGTHS:
            if found := program.default_of(key):
                length, where = found[0], f", as the YAML has none, by {found[1]}"
                break
    tokens = copy.get("max_new_tokens")
    if not isinstance(length, int) or not isinstance(tokens, int):
        draft.unknown.append(
            f"the context that is measured: no {' or '.join(_LENGTHS)} with max_new_tokens is seen; a plan is tuned "
            "for the one that is run"
        )
        return ""
    drafts = copy.get("next_n")
    most = length + tokens * (1 + (drafts if isinstance(drafts, int) else 0))
    draft.found.append(
        f"{key} is {length}{where}, and max_new_tokens in the copy {tokens}: decode steps are measured with at most "
        f"{most} tokens of context, and a plan is tuned for it"
    )
    is_default = copy.get("dataset", "default") == "default"
    if is_default and 0 < (characters := _default_prompt(program.root)) < length:
        draft.found.append(
            f"dataset is 'default', whose prompt has {characters} characters: if the program does not pad it, contexts "
            f"are shorter than {key}; `dataset: LongBench` has long prompts"
        )
    return key


def _default_prompt(root: Path) -> int:
    """Return the characters of the prompt that programs use by default; 0 if it is not there."""
    try:
        text = json.loads(source_text(root / _DEFAULT_PROMPT) or "null")
    except ValueError:
        return 0
    return len(str(text["text"])) if isinstance(text, dict) and "text" in text else 0


def _defaults(text: str, key: str) -> list[tuple[int, int]]:
    """Return the number and the line of each ``.get(key, number)`` in a source."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="get"), args=[ast.Constant(value=name), ast.Constant(value=int(number))]
            ) if name == key:
                found.append((number, node.lineno))
    return found


def _add_role(draft: RecipeDraft, program: MeasuredProgram, length: str) -> None:
    """Add that the YAML is one role of a deployment, and that its name says prefill."""
    file, settings = program.file, by_key(program.settings)
    if file.stem == "decode" and file.with_name("prefill.yaml").is_file():
        served = [f"{key} {settings[key]}" for key in ("max_prefill_tokens", "max_new_tokens") if key in settings]
        path = program.path_of(length, f"data_config.{length}") if length else "the context's setting"
        requests = f", while its requests may have {' and '.join(served)}" if served else ""
        draft.found.append(
            "it is the decode role of a deployment, whose decode step is the one to tune; prefill.yaml beside it is "
            "for the other role, which runs none"
        )
        draft.to_do.append(
            f"set {path} and batch_size in yaml.set to what the deployment serves: started offline, the decode role "
            f"does its own prefill{requests}"
            + ("; mem_fraction_static does not limit an offline run" if "mem_fraction_static" in settings else "")
        )
    elif re.search(r"(^|_)prefill(_|$)", file.stem):
        others = sorted(path.name for path in file.parent.glob("*.yaml") if "decode" in path.stem)
        draft.to_do.append(
            "see whether this is the step that you want: the YAML's name says prefill, so its batch, context and "
            f"parallelism are chosen for prefill{f'; {others[0]} is for decode' if others else ''}"
        )


def _add_weights(draft: RecipeDraft, program: MeasuredProgram) -> None:
    known, texts = by_key(program.settings), [source_text(path) for path in program.sources]
    faster = []
    if known.get(DUMMY) is False:
        draft.found.append(
            f"{DUMMY} is False: weights are random, so tokens go to random experts, and latencies are not those of the "
            "real weights"
        )
    elif any(DUMMY in text for text in texts):
        faster.append(f"{program.path_of(DUMMY, f'model_config.{DUMMY}')}: false (random weights, random experts)")
    if (layers := known.get(LAYERS)) is not None:
        draft.found.append(f"{LAYERS} is {layers}: a plan is tuned for {layers} layers, not for the whole model")
    elif any(_FEWER_LAYERS.search(text) for text in texts):
        faster.append(f"model_config.custom_params.{LAYERS}: 8 (the first layers alone)")
    if faster:
        draft.found.append(
            "all weights are loaded at each start; if that takes long, first try a search with " + " and ".join(faster)
            + " in yaml.set"
        )  # fmt: skip
