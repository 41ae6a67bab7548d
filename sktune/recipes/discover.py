"""Drafts a recipe for an unknown folder: finds how its program is started, and refuses what sktune cannot tune."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sktune.core.errors import BadInputError
from sktune.core.files import real_path, source_text
from sktune.recipes.checkout import Checkout, checkout_of, decoder_in
from sktune.recipes.decode_evidence import decode_evidence
from sktune.recipes.measured_step import MeasuredProgram, add_measured_step
from sktune.recipes.recipe_draft import (
    RecipeDraft,
    add_mode,
    add_yaml,
    by_key,
    copy_mode,
    data_parallel_groups,
    dies_of,
    read_settings,
)
from sktune.source.yaml_flag import CAPTURED_MODE, MODE, NEEDED_MODE

_READS_ARGUMENTS = re.compile(r"\bsys\.argv\b|\bparse_args\(")
_ENGINE = re.compile(r"^\s*(?:from|import) (vllm|sglang)\b", re.MULTILINE)
_OF_NPU = re.compile("torch_npu|torchair|superkernel_scope")
"""What only programs for an NPU have."""
_EVIDENCE = "no use of torch.compile or get_npu_backend, no generate, no loop around a decode function"


def draft_recipe(folder: Path, yaml_file: Path | None = None, command: str | None = None) -> RecipeDraft:
    """Draft a recipe for a checkout of cann-recipes-infer, one of its models, or a folder with any other program.

    Args:
        folder: the folder.
        yaml_file: the program's YAML; needed if there are several.
        command: the command that starts the program; needed if no script is found.

    Raises:
        BadInputError: there is nothing to start, there are several YAML files to choose from, or what would be started
            cannot be tuned; the message says why.
    """
    if not folder.is_dir():
        raise BadInputError(f"{folder} is not a folder; give a checkout of recipes, or the folder of a model")
    folder = real_path(folder)
    checkout = checkout_of(folder)
    if command or not checkout:
        return _from_program(folder, yaml_file, command)
    models = checkout.models_in(folder)
    if len(models) == 1 and not checkout.starts(models[0]):
        return _from_own_script(checkout, models[0], yaml_file)
    return _from_checkout(checkout, folder, models, yaml_file)


def _from_own_script(checkout: Checkout, model: Path, yaml_file: Path | None) -> RecipeDraft:
    if any("max_new_tokens" in by_key(read_settings(config)) for config in checkout.configs(model)):
        return _from_program(model, yaml_file, None)
    script = "a launch script of its own" if (model / "infer.sh").is_file() else "no infer.sh"
    raise BadInputError(
        f"{model.name} has {script}, and no max_new_tokens in its YAMLs: it has no decode step that sktune knows of; "
        "if another compiled step is to be tuned, give the command with --command"
    )


def _from_checkout(checkout: Checkout, folder: Path, models: list[Path], yaml_file: Path | None) -> RecipeDraft:
    file = _chosen([path for model in models for path in checkout.configs(model)], yaml_file, folder)
    model = next((each for each in checkout.models if file.is_relative_to(each)), None)
    if model is None and len(models) > 1:
        raise BadInputError(
            f"{file} does not belong to a model of {checkout.root}; give the folder of its model, models/MODEL"
        )
    model = model or models[0]
    if not checkout.starts(model):
        return _from_own_script(checkout, model, file)
    settings = read_settings(file)
    _refuse_untunable(checkout, model, file, settings)
    draft = RecipeDraft({"version": 1, "name": f"{model.name}-{file.stem}", "command": checkout.command(model, file),
                         "directory": str(checkout.root)})  # fmt: skip
    shown = file.relative_to(checkout.root) if file.is_relative_to(checkout.root) else file
    draft.found.append(f"{checkout.launcher(model).as_posix()} starts {model.name} with {shown}")
    sources = [*model.rglob("*.py"), *(checkout.root / "executor").rglob("*.py")]
    mode = copy_mode(settings, sources, model)
    add_yaml(draft, file, settings, checkout.root, mode, checkout.set_env(model))
    add_mode(draft, sources, settings, model, mode)
    add_measured_step(draft, MeasuredProgram(file, settings, sources, checkout.root))
    _add_decoder(draft, checkout, model, settings)
    draft.values["logs"] = f"models/{model.name}/res/*/*{file.stem}*/log_*.log"
    _add_backend(draft, sources, settings, mode)
    return draft


def _from_program(folder: Path, yaml_file: Path | None, command: str | None) -> RecipeDraft:
    argv = _split(command) if command else _start_command(folder)
    draft = RecipeDraft({"version": 1, "name": folder.name, "command": shlex.join(argv), "directory": str(folder)})
    draft.found.append(f"the command is {command or shlex.join(argv)}")
    if not command:
        _add_program(draft, folder / argv[-1], folder)
    if yaml_file:
        name = yaml_file.name
        if not any(name in argument for argument in argv):
            raise BadInputError(f"the command does not name {name}, so it cannot be given a copy; name it in --command")
        draft.values["command"] = " ".join(
            argument.replace(name, "{yaml_name}") if name in argument else shlex.quote(argument) for argument in argv
        )
        file = _existing(yaml_file, folder)
        settings = read_settings(file)
        sources = list(folder.rglob("*.py"))
        mode = copy_mode(settings, sources, folder)
        add_yaml(draft, file, settings, folder, mode)
        add_mode(draft, sources, settings, folder, mode)
        add_measured_step(draft, MeasuredProgram(file, settings, sources, folder))
    else:
        mode, settings, sources = NEEDED_MODE, {}, list(folder.rglob("*.py"))
        draft.to_do.append(
            "name the YAML that the program reads, if any, with --yaml: sktune then turns the program's own scopes off"
        )
        draft.to_do.append("set `ranks`, if it starts more than 1")
    draft.found.append("latency is `steps`: sktune's own times of the decode step, as no log lines are known")
    draft.values["latency"] = "steps"
    _add_backend(draft, sources, settings, mode)
    return draft


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as failure:
        raise BadInputError(f"--command cannot be split into arguments ({failure}); fix its quotes") from failure


def _start_command(folder: Path) -> list[str]:
    """Return the command of the folder's only program that has a decode step.

    Raises:
        BadInputError: there is none, or there are several.
    """
    scripts = [path for path in (folder / "infer.sh", folder / "run.sh") if path.is_file()]
    if scripts:
        named = (folder / name for name in re.findall(r"[\w./-]+\.py\b", source_text(scripts[0])))
        if not any(decode_evidence(path, folder) for path in named if path.is_file()):
            raise BadInputError(
                f"{scripts[0]} starts no Python program of its folder in which a decode step is seen: {_EVIDENCE}; if "
                "it has one, give the command with --command"
            )
        return ["bash", scripts[0].name]
    programs = [path for path in sorted(folder.glob("*.py")) if "__main__" in source_text(path)]
    decoding = [path for path in programs if decode_evidence(path, folder)]
    if len(decoding) == 1:
        return ["python3", decoding[0].name]
    names = ", ".join(path.name for path in (decoding or programs)[:4])
    if decoding:
        raise BadInputError(
            f"{folder} has {len(decoding)} programs with a decode step ({names}); name one with --command"
        )
    if programs:
        raise BadInputError(
            f"{folder} has no infer.sh, and its Python programs ({names}) show no decode step: {_EVIDENCE}; if one has "
            "it, give the command with --command"
        )
    raise BadInputError(f"{folder} has no infer.sh, and no Python program; give the command with --command")


def _add_program(draft: RecipeDraft, program: Path, folder: Path) -> None:
    """Add what shows a program's decode step, and what it may need to be started."""
    if program.suffix == ".py":
        draft.found.append(f"{decode_evidence(program, folder)} shows a decode step")
        if _READS_ARGUMENTS.search(source_text(program)):
            draft.to_do.append(
                f"give the whole command with --command: {program.name} reads its command line, and is given no "
                "arguments"
            )


def _chosen(configs: list[Path], yaml_file: Path | None, folder: Path) -> Path:
    """Return the YAML that the user means: a file of that path, else the only one of the checkout that ends with it."""
    named = configs
    if yaml_file:
        if (own := next((each for each in (yaml_file, folder / yaml_file) if each.is_file()), None)) is not None:
            return real_path(own)
        named = [path for path in configs if path.parts[-len(yaml_file.parts) :] == yaml_file.parts]
        if not named:
            return _existing(yaml_file, folder)
    if not named:
        raise BadInputError(f"{folder} has no YAML file to start a model with; give the command with --command")
    if len(named) != 1:
        shared = {path.name for path in named if [each.name for each in named].count(path.name) > 1}
        names = [f"{path.parent.name}/{path.name}" if path.name in shared else path.name for path in named[:6]]
        raise BadInputError(
            f"{folder} has {len(named)} YAML files to start a model with ({', '.join(names)}); name one with --yaml"
        )
    return named[0]


def _existing(path: Path, folder: Path) -> Path:
    for each in (path, folder / path):
        if each.is_file():
            return real_path(each)
    raise BadInputError(f"there is no file {path}, neither here nor in {folder}; fix --yaml")


def _refuse_untunable(checkout: Checkout, model: Path, file: Path, settings: Mapping[str, Any]) -> None:
    """Raise BadInputError with every reason why a run with this YAML cannot be tuned."""
    known = by_key(settings)
    reasons = []
    is_prefill = file.stem == "prefill" and (decode := file.with_name("decode.yaml")).is_file()
    if is_prefill:
        reasons.append(f"it is the prefill role of a deployment whose decode role is {decode.name} beside it")
    tokens = known.get("max_new_tokens")
    if isinstance(tokens, int) and tokens < 2:
        reasons.append(f"max_new_tokens is {tokens}, so that a run ends after prefill, without a decode step")
    if known.get("enable_afd"):
        reasons.append("enable_afd is on: ranks of attention and of experts run different modules, and sktune needs "
                       "the same ones in all ranks")  # fmt: skip
    world, dies = known.get("world_size"), dies_of(known)
    if isinstance(world, int) and world > dies and world % dies:
        reasons.append(f"world_size is {world}, and a server has {dies} dies: hosts would have different numbers of "
                       "ranks")  # fmt: skip
    groups = data_parallel_groups({"attn_tp_size": 1, **known})
    batch = known.get("batch_size")
    if groups and isinstance(batch, int) and batch % groups and not is_prefill:
        reasons.append(f"batch_size is {batch}, which {groups} data-parallel groups (world_size / attn_tp_size) cannot "
                       "share equally")  # fmt: skip
    name = known.get("model_name")
    if checkout.classes(name) == [] and not (model / "infer.py").is_file():
        reasons.append(f"the program knows no model {name!r}")
    if reasons:
        raise BadInputError(f"{file.name} cannot be tuned: {'; '.join(reasons)}; name another YAML with --yaml")


def _add_decoder(draft: RecipeDraft, checkout: Checkout, model: Path, settings: Mapping[str, Any]) -> None:
    registered = checkout.classes(by_key(settings).get("model_name")) or []
    files = [registered[0][0]] if registered else sorted((model / "models").glob("modeling*.py"))
    decoder = decoder_in(files)
    if decoder is None:
        draft.unknown.append("the decoder's class: no modeling_*.py has a ModuleList named layers")
        return
    file = decoder.file.relative_to(checkout.root)
    draft.found.append(f"its decoder layer is {decoder.layer} in {file}, in {decoder.owner}.{decoder.attribute}")


def _add_backend(draft: RecipeDraft, sources: list[Path], settings: Mapping[str, Any], mode: str) -> None:
    texts = [source_text(path) for path in sources]
    named = {found.group() for text in texts for found in _OF_NPU.finditer(text)}
    named |= {MODE} & by_key(settings).keys()
    draft.values["backend"] = ("npugraph-ex" if mode == CAPTURED_MODE else "npu") if named else "inductor"
    shown = " and ".join(sorted(named)) or f"no {_OF_NPU.pattern.replace('|', ', ')} or {MODE}"
    draft.found.append(f"backend is {draft.values['backend']}, as sources and YAML have {shown}")
    if engines := sorted({found[1] for text in texts for found in _ENGINE.finditer(text)}):
        draft.to_do.append(
            f"check `backend`: {' and '.join(engines)} chooses the device by what is installed; sources do not say it"
        )
    draft.found.append("timeout_s is 1800, the limit for a whole run: start, compilation and all decode steps")
    draft.values["timeout_s"] = 1800
