"""``sktune profile`` as a function: read, analyse, compare, draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sktune.ascend.cann_log import explain_files
from sktune.ascend.fusion import RealisedFusion, realised_fusion
from sktune.ascend.ge_graph import read_ge_graph
from sktune.ascend.graph_log import fusion_of_log
from sktune.core.errors import BadInputError
from sktune.core.files import real_path
from sktune.profiling import timeline
from sktune.profiling.analysis import Profile, analyse
from sktune.profiling.comparison import MatchedProfiles, compare
from sktune.profiling.readers.reading import read_profile

FOLDER = "profiles"


@dataclass(frozen=True, slots=True, eq=False)
class ProfileReport:
    """An analysed profile, its comparison with a candidate if there is one, and the path of the page."""

    profile: Profile
    comparison: MatchedProfiles | None
    picture: Path

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to trust the figures less, with the profile that they are about if there are two."""
        if not self.comparison:
            return self.profile.warnings
        both = (("baseline", self.profile), ("candidate", self.comparison.candidate))
        return tuple(f"{label}: {line}" for label, profile in both for line in profile.warnings)


def report(path: Path, candidate: Path | None, picture: Path | None, runs: Path) -> ProfileReport:
    """Analyse the profile at ``path``, compare it with ``candidate``, and draw both.

    Args:
        picture: where to write the page; by default in the folder ``profiles`` of ``runs``, named after the file.

    Raises:
        ProfileError: a file cannot be read or written, or is not a profile.
    """
    profile = analyse(read_profile(path))
    comparison = compare(profile, analyse(read_profile(candidate))) if candidate else None
    name = _name(path) + (f"-{_name(candidate)}" if candidate else "")
    title = f"{path.name} against {candidate.name}" if candidate else path.name
    where = picture or runs / FOLDER / f"{name}.html"
    return ProfileReport(profile, comparison, timeline.write(timeline.render(profile, title, comparison), where))


def fusion_of_files(graph: Path, fused: Sequence[Path], profile: Path | None, logs: Sequence[Path]) -> RealisedFusion:
    """Return how the scopes marked in ``graph`` were fused, from GE's dumps, a profile and CANN's logs.

    If ``graph`` is a folder, it is graph-autofusion's log of a captured graph, which says all of it.

    Raises:
        BadInputError: a file cannot be read, or is not of the expected kind.
    """
    if graph.is_dir():
        if fused or profile or logs:
            raise BadInputError(f"{graph} is the log of a captured graph, which needs no other file; give it alone")
        return fusion_of_log(graph)
    marked = read_ge_graph(graph)
    labels = list(marked.by_scope())
    if not labels:
        raise BadInputError(f"{graph} has no scopes; give TorchAir's dump of a step that was compiled with scopes")
    types = {operator.name: operator.type for operator in marked.operators}
    return realised_fusion(
        marked=marked,
        fused=[read_ge_graph(path) for path in fused],
        kernels=read_profile(profile).frame if profile else None,
        explanations=explain_files(logs, labels, types),
        labels=labels,
    )


def _name(path: Path) -> str:
    """Return a name for the page, with the profiler's folder if any: many files are called kernel_details.csv."""
    path = real_path(path)
    stem = path.name.partition(".")[0]
    for parent in path.parents:
        if parent.name.endswith("_ascend_pt"):
            return f"{parent.name}-{stem}"
    return stem or "profile"
