"""The skill and the subagent that ``sktune agent install`` writes, for agents that can read files and run commands."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from sktune.core.errors import BadInputError
from sktune.core.files import inside, read_text, write_text
from sktune.core.plain_data import load_json

TEMPLATES = Path(__file__).parent
SKILL = "superkernel-autotune"
SUBAGENT = "superkernel-analyzer"
RECORD = Path(".sktune") / "agent.json"
"""Digests of the written files, below the folder: a file with another digest was edited."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation: paths below its folder."""

    written: tuple[str, ...]
    unchanged: tuple[str, ...]


def install(folder: Path, *, force: bool = False) -> Installed:
    """Write the skill and the subagent below ``folder``, for each kind of agent; a second call changes nothing.

    Raises:
        BadInputError: a file there is not ours or was edited, and ``force`` is not given; nothing is written.
    """
    if not folder.is_dir():
        raise BadInputError(f"{folder} is not a folder; give the one with the recipes or the model")
    wanted, record = files(), _record(folder)
    real = {name: inside(folder, folder / name, "delete the link") for name in (*wanted, RECORD.as_posix())}
    new = {name: text for name, text in wanted.items() if _text(folder / name) != text}
    foreign = [name for name in new if not _is_ours(folder / name, record.get(name))]
    if foreign and not force:
        raise BadInputError(f"not ours, or edited: {', '.join(foreign)}; move them away, or overwrite with --force")
    for name, text in new.items():
        try:
            real[name].parent.mkdir(parents=True, exist_ok=True)
            write_text(real[name], text)
        except OSError as failure:
            raise BadInputError(f"{folder / name} cannot be written ({failure.strerror}); fix that first") from failure
    known = record | {name: _digest(text) for name, text in wanted.items()}
    if known != record:
        try:
            (folder / RECORD).parent.mkdir(exist_ok=True)
            write_text(folder / RECORD, json.dumps({"version": 1, "files": known}, indent=1))
        except OSError as failure:
            raise BadInputError(
                f"{folder / RECORD} cannot be written ({failure.strerror}); fix that first"
            ) from failure
    return Installed(tuple(new), tuple(name for name in wanted if name not in new))


def files() -> dict[str, str]:
    """Return the text of each file, by its path below the folder that it is installed to."""
    skill = (TEMPLATES / "SKILL.md").read_text(encoding="utf-8")
    subagent = (TEMPLATES / f"{SUBAGENT}.md").read_text(encoding="utf-8")
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
    """Return the subagent in Codex's format: the keys name, description and developer_instructions."""
    _, head, body = subagent.split("---\n", 2)
    keys = dict(line.split(": ", 1) for line in head.splitlines() if line.startswith(("name: ", "description: ")))
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()]
    return "\n".join([*lines, f"developer_instructions = '''\n{body.strip()}\n'''", ""])


def _is_ours(path: Path, digest: str | None) -> bool:
    return not path.exists() or _digest(_text(path) or "") == digest


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
