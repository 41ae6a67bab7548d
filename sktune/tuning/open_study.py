"""The study of a request: where it is stored, and whether it has the answer already."""

from pathlib import Path

from sktune.core.files import real_path
from sktune.study.backup import Backup
from sktune.study.facts import ProxyFindings
from sktune.study.storage import DATABASE
from sktune.study.study import TuningStudy, sqlite_url
from sktune.tuning.request import Request


def stored_study(request: Request, name: str, folder: Path) -> TuningStudy | None:
    """Return the study if it may exist. A new one's database is created while its first worker starts."""
    return opened_study(request, name, folder) if request.storage or any(folder.glob(f"{DATABASE}*")) else None


def opened_study(request: Request, name: str, folder: Path) -> TuningStudy:
    """Open the study, and create it if it is missing."""
    backup = None if request.storage else Backup(real_path(folder))
    return TuningStudy.open(name, request.storage or sqlite_url(real_path(folder)), create=True, backup=backup)


def is_answered(study: TuningStudy, request: Request, proxy: ProxyFindings | None) -> bool:
    """Whether all trials are done, and the best of them were compared."""
    facts, finished = study.facts, study.finished()
    has_ended = finished >= request.max_trials if proxy is None else facts.proxy == proxy
    return (has_ended or facts.exhausted) and facts.final_trials == finished
