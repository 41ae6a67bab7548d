"""The skill and the subagent that ``sktune agent install`` writes, for agents that can read files and run commands.

Their texts are in a folder for each language. The skill's first part, ``choose-*.md``, depends on the folder: in a
checkout of cann-recipes-infer the subject is the recipe of one of its models, elsewhere a model.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from sktune.core.errors import BadInputError
from sktune.core.files import inside, read_text, real_path, source_text, write_text
from sktune.core.plain_data import load_json
from sktune.recipes.checkout import checkout_of

TEMPLATES = Path(__file__).parent
SKILL = "superkernel-autotune"
SUBAGENT = "superkernel-analyzer"
RECORD = Path(".sktune") / "agent.json"
"""Digests of the written files, below the folder: a file with another digest was edited."""
LANGUAGES = ("en", "zh")
_CHINESE_SHARE = 0.1
"""Of the letters: at fbc225d, cann-recipes-infer's AGENTS.md has 0.35 and its README.md 0.38."""
_SOURCE = f".agents/agents/{SUBAGENT}.md"


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation: paths below its folder."""

    written: tuple[str, ...]
    unchanged: tuple[str, ...]


def install(folder: Path, *, language: str = "", force: bool = False) -> Installed:
    """Write the skill and the subagent below ``folder``, for each kind of agent; a second call changes nothing.

    Args:
        folder: where agents work.
        language: one of ``LANGUAGES``; by default that of the folder's AGENTS.md, or README.md.
        force: overwrite files that are not ours or were edited.

    Raises:
        BadInputError: a file there is not ours or was edited, and ``force`` is not given; nothing is written.
    """
    if not folder.is_dir():
        raise BadInputError(f"{folder} is not a folder; give the one with the recipes or the model")
    if language not in ("", *LANGUAGES):
        raise BadInputError(f"unknown language {language!r}; choose from {', '.join(LANGUAGES)}")
    is_checkout = checkout_of(real_path(folder)) is not None
    wanted, record = files(language or _language(folder), is_checkout=is_checkout), _record(folder)
    real = {name: inside(folder, folder / name, "delete the link") for name in (*wanted, RECORD.as_posix())}
    new = {name: text for name, text in wanted.items() if _text(folder / name) != text}
    foreign = [name for name in new if not _is_ours(folder, name, record)]
    if foreign and not force:
        raise BadInputError(f"not ours, or edited: {', '.join(foreign)}; move them away, or overwrite with --force")
    for name, text in new.items():
        _write(real[name], text, folder / name)
    known = record | {name: _digest(text) for name, text in wanted.items()}
    if known != record:
        _write(folder / RECORD, json.dumps({"version": 1, "files": known}, indent=1), folder / RECORD)
    return Installed(tuple(new), tuple(name for name in wanted if name not in new))


def files(language: str, *, is_checkout: bool) -> dict[str, str]:
    """Return the text of each file, by its path below the folder that it is installed to."""
    skill, subagent, choose = (
        (TEMPLATES / language / name).read_text(encoding="utf-8")
        for name in ("SKILL.md", f"{SUBAGENT}.md", "choose-recipe.md" if is_checkout else "choose-model.md")
    )
    skill = skill.replace("<!-- choose -->\n", choose)
    # The recipes link files in .claude to .agents: both must be the same.
    texts = {}
    for home in (".agents", ".claude", ".codex"):
        texts[f"{home}/skills/{SKILL}/SKILL.md"] = skill
        if home == ".codex":
            texts[f"{home}/agents/{SUBAGENT}.toml"] = _as_toml(subagent)
        else:
            texts[f"{home}/agents/{SUBAGENT}.md"] = subagent
    return texts


def _as_toml(subagent: str) -> str:
    """Return the subagent in Codex's format, byte for byte as cann-recipes-infer's init-agent.sh converts it."""
    _, head, body = subagent.split("---\n", 2)
    keys = dict(line.split(": ", 1) for line in head.splitlines() if line.startswith(("name: ", "description: ")))
    keys[""] = ""
    keys["developer_instructions"] = f"{body.strip()}\n\nAvailable skills for this role:\n- {SKILL}\n"
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" if key else "" for key, value in keys.items()]
    return "\n".join([*lines, ""])


def _language(folder: Path) -> str:
    text = source_text(folder / "AGENTS.md") or source_text(folder / "README.md")
    letters = sum(map(str.isalpha, text))
    return "zh" if len(re.findall("[\u4e00-\u9fff]", text)) > _CHINESE_SHARE * letters else "en"


def _write(path: Path, text: str, name: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as failure:
        raise BadInputError(f"{name} cannot be written ({failure.strerror}); fix that first") from failure


def _is_ours(folder: Path, name: str, record: dict[str, str]) -> bool:
    path = folder / name
    if not path.exists():
        return True
    text, source = _text(path) or "", _text(folder / _SOURCE) or ""
    # init-agent.sh makes Codex's file again, out of the one in .agents, which may be of an earlier version.
    is_converted = name.endswith(".toml") and record.get(_SOURCE) == _digest(source) and text == _as_toml(source)
    return _digest(text) == record.get(name) or is_converted


def _text(path: Path) -> str | None:
    try:
        return read_text(path, BadInputError, "")
    except BadInputError:
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _record(folder: Path) -> dict[str, str]:
    text = _text(folder / RECORD)
    if text is None:
        return {}
    fix = "delete it and use --force"
    record = load_json(text, str(folder / RECORD), BadInputError, fix)
    digests = record.get("files") if isinstance(record, dict) else None
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise BadInputError(f"{folder / RECORD} is damaged; {fix}")
    return digests
