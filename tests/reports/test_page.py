"""``report.html``: its figures are the study's, it is safe, small, and complete without scripts and network.

Its table of workers, which ``sktune show`` has too: who runs what, and why a die is not used any more.
"""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sktune.core.errors import BadInputError
from sktune.core.language import LANGUAGES, Language
from sktune.core.outcome import BASELINE_REPEAT, Reason
from sktune.measure.verdict import Verdict
from sktune.profiling.analysis import analyse
from sktune.profiling.readers.reading import read_profile
from sktune.reports.drawing import Scale
from sktune.reports.figures import FIGURES
from sktune.reports.figures.plans import plans
from sktune.reports.figures.verdict import verdict
from sktune.reports.figures.workers import workers
from sktune.reports.page.page import file_text, page_html
from sktune.reports.study import report_markdown
from sktune.reports.texts import TEXTS
from sktune.server.shelf import Shelf
from sktune.study.leases import Leases
from sktune.study.result import SearchResult, result_of
from tests import profiles
from tests.builders import checked, sktune_command, succeeded
from tests.reports.page_studies import HOSTILE, at_fixed_times, measured, on_three_dies, shown, study_in

KEYS = ["verdict", "plans", "waterfall", "final", "history", "segments", "effects", "failures", "predicted", "machine",
        "time", "compare", "trials", "terms"]  # fmt: skip


class Reader(HTMLParser):
    """Reads a page as a browser without scripts does."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.data = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element without content."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Elements are nested."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text."""
        if self.open and self.open[-1] == "script":
            self.data = self.data or data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All text that is shown."""
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    """A study with every kind of outcome."""
    return study_in(tmp_path_factory.mktemp("page"), trials=30)


@pytest.fixture(scope="module")
def page(study: SearchResult) -> str:
    """Its page."""
    return page_html(study)


def data_of(page: str) -> dict[str, Any]:
    """Return the page's data."""
    data: dict[str, Any] = json.loads(Reader(page).data)
    return data


def test_all_pictures_are_there_in_order(page: str) -> None:
    """Each is a section with an anchor that the navigation links to."""
    reader = Reader(page)
    sections = [attributes["id"] for tag, attributes in reader.tags if tag == "section"]
    assert sections == KEYS
    assert not reader.open
    links = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
    assert {f"#{key}" for key in KEYS} <= set(links)


def test_every_picture_has_a_title_a_description_and_a_table(study: SearchResult) -> None:
    """They are what a screen reader reads."""
    for key, make in FIGURES.items():
        section = make(shown(study))
        if section is None or "<svg" not in section.body:
            continue
        assert section.table is not None or key == "history", key
        tags = Reader(section.body).tags
        ids = {attributes.get("id") for _, attributes in tags}
        for tag, attributes in tags:
            if tag == "svg":
                assert attributes["role"] == "img"
                assert set((attributes["aria-labelledby"] or "").split()) <= ids


def test_the_figures_are_those_of_the_study(study: SearchResult, page: str) -> None:
    """In the verdict, in the data, and in the tables."""
    assert study.winner
    text = Reader(page).text
    assert f"{study.winner.speedup.ratio:.3f}×" in text
    low, high = study.winner.speedup.ci95 or (0.0, 0.0)
    assert f"{low:.3f} – {high:.3f}" in text
    assert "identical to the baseline on 2,048 steps" in text
    trials = {trial["n"]: trial for trial in data_of(page)["trials"]}
    assert trials.keys() == {record.number for record in study.trials}
    for record in study.trials:
        assert record.outcome
        trial = trials[record.number]
        assert trial["r"] == str(record.outcome.reason or "complete")
        if record.outcome.speedup:
            assert trial["s"] == round(record.outcome.speedup.ratio, 5)
            assert trial["ci"] == [round(bound, 5) for bound in record.outcome.speedup.ci95 or ()]
            row = re.search(
                rf'<tr data-t="{record.number}"><td>{record.number}</td>.*?</tr>', page.partition('id="trials"')[2]
            )
            assert row
            assert f"<td>{record.outcome.speedup.ratio:.3f}</td>" in row.group()
    for final in study.final:
        if final.name.isdigit():
            speedup = study.final_speedup(final)
            assert speedup
            assert trials[int(final.name)]["f"]["s"] == round(speedup.ratio, 5)


def test_a_gain_smaller_than_its_doubt_comes_with_a_warning(study: SearchResult) -> None:
    """So does one that a copy of the baseline had, too."""
    assert study.winner
    assert "Too noisy" not in verdict(shown(study)).body
    assert study.comparison
    rows = study.comparison.rows
    copy = tuple(replace(row, speedup=measured(1.09)) if row.name == BASELINE_REPEAT else row for row in rows)
    noisy = replace(study, comparison=replace(study.comparison, rows=copy))
    assert "Too noisy" in verdict(shown(noisy)).body


@pytest.mark.parametrize(("reason", "headline", "advice"), [
    (Reason.SLOWER, "No scope", "leave the model unchanged"),
    (Reason.COMPILE_FAILED, "Nothing could be tried", "Mend what these lines name"),
])  # fmt: skip
def test_slower_plans_have_not_failed(study: SearchResult, reason: Reason, headline: str, advice: str) -> None:
    """If all were compared and none won, the model stays as it is; only failures are to be mended."""
    ended = [replace(record, outcome=replace(record.outcome, reason=reason)) for record in study.trials
             if record.outcome]  # fmt: skip
    body = verdict(shown(replace(study, trials=ended, verdict=Verdict(None, ())))).body
    assert headline in body and advice in body


def test_what_the_scopes_became_is_drawn(study: SearchResult) -> None:
    """A box for each SuperKernel of the winner, and for each kernel that was not fused."""
    section = plans(shown(study))
    assert section and study.winner
    assert study.winner.number is not None
    outcome = shown(study).records[study.winner.number].outcome
    assert outcome and outcome.fused
    boxes = {str(attributes["class"]): str(attributes["d"]).count("M") for tag, attributes in Reader(section.body).tags
             if tag == "path" and str(attributes.get("class")).startswith("f ")}  # fmt: skip
    assert boxes == {"f superkernel": sum(scope.superkernels for scope in outcome.fused), "f alone": 1}


def test_plans_can_be_read_from_the_data(study: SearchResult, page: str) -> None:
    """Its short form of a plan has every scope, with its options."""
    data = data_of(page)
    for trial in data["trials"]:
        plan = data["plans"][trial["p"]]
        reached, scopes = 0, []
        for group in filter(None, plan["s"].split(";")):
            pattern, _, times = group.partition("*")
            for piece in pattern.split(" ") * int(times or 1):
                gap, length, options = map(int, piece.split("."))
                scopes.append(
                    (data["units"][reached + gap], data["units"][reached + gap + length - 1], data["options"][options])
                )
                reached += gap + length
        plan_of_trial = next(record for record in study.trials if record.number == trial["n"]).judged_plan
        assert [scope[:2] for scope in scopes] == [(scope.first, scope.last) for scope in plan_of_trial.scopes]
        assert all(set(filter(None, options.split(", "))) == {f"{name}={value}" for name, value in scope.options}
                   for (_, _, options), scope in zip(scopes, plan_of_trial.scopes, strict=True))  # fmt: skip


def test_nothing_is_loaded_and_only_the_own_script_runs(page: str) -> None:
    """No address but anchors, no inline handler, and a policy that forbids all else."""
    for tag, attributes in Reader(page).tags:
        assert tag not in ("img", "iframe", "object", "base", "form") or attributes.get("id") == "filters"
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src"):
                assert value == "data:," or (value or "").startswith("#")
    script = file_text("page.js").encode()
    policy = page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    assert f"script-src &#39;sha256-{b64encode(sha256(script).digest()).decode()}&#39;;" in policy
    assert policy.startswith("default-src &#39;none&#39;;") and "connect-src &#39;none&#39;;" in policy
    assert len(script) < 30_000


@pytest.mark.parametrize("language", LANGUAGES)
def test_hostile_text_is_text(tmp_path: Path, language: Language) -> None:
    """In the names of study and model, in what the compiler says: it adds no element, and takes little room."""
    result = study_in(tmp_path, HOSTILE, trials=30, text=HOSTILE, description=HOSTILE, device=HOSTILE)
    harmless = study_in(tmp_path, "harmless", trials=30)
    page = page_html(at_fixed_times(result), language)
    tags = [tag for tag, _ in Reader(page).tags]
    assert sorted(tags) == sorted(tag for tag, _ in Reader(page_html(at_fixed_times(harmless), language)).tags)
    assert page.count("<script") == 2
    assert "\u202e" not in page
    assert data_of(page)["study"].startswith("</script><script>")
    assert len(page) < 250_000


def test_texts_are_complete_in_both_languages(study: SearchResult) -> None:
    """They take the same values, and Chinese pages have no English sentences left."""
    for key, (english, chinese) in TEXTS.items():
        assert sorted(re.findall(r"{(\w+)}", english)) == sorted(re.findall(r"{(\w+)}", chinese)), key
    page = page_html(study, "zh")
    assert '<html lang="zh">' in page
    assert "每步" in page
    shared = {"ms", "plan", "SuperKernel", "SuperKernels"}
    for key, (english, _) in TEXTS.items():
        if len(english.split()) > 4 and "{" not in english and english not in shared:
            assert english not in Reader(page).text, key


@pytest.mark.slow
def test_a_page_stays_below_a_kilobyte_for_each_trial(tmp_path: Path) -> None:
    """Over 61 layers and with a different plan in each: 1,000 trials stay below 1 MB, with the page's own 30 kB."""
    sizes = [len(page_html(study_in(tmp_path / str(trials), trials=trials, layers=61, final=False)).encode())
             for trials in (50, 150)]  # fmt: skip
    per_trial = (sizes[1] - sizes[0]) / 100
    assert sizes[0] + 950 * per_trial < 1_000_000


@pytest.mark.parametrize("trials", [0, 1, 7])
def test_studies_that_have_not_come_far_have_a_page(tmp_path: Path, trials: int) -> None:
    """It says what to do next."""
    page = page_html(study_in(tmp_path, trials=trials, final=False))
    assert "run it again to continue" in Reader(page).text


def test_a_running_study_has_not_taken_no_time(study: SearchResult) -> None:
    """The time is said when it is known: at the end of a run."""
    running = replace(study, facts=replace(study.facts, seconds=0.0, final_seconds={}))
    assert "100 s" in str(verdict(shown(study)))
    assert not re.search(r"\b0 s\b", Reader(str(verdict(shown(running)))).text)


@pytest.mark.parametrize("wanted", [4, 5, 8, 10])
@pytest.mark.parametrize(("low", "high"), [(3.79, 3.83), (0.0, 1.0), (-2.5, 11.0), (0.9996, 1.0004), (0.0, 6_300.0)])
def test_labels_tell_ticks_apart(low: float, high: float, wanted: int) -> None:
    """Whatever number of ticks is asked for."""
    labels = [label for _, label in Scale(low, high, 0.0, 100.0).ticks(wanted)]
    assert len(labels) > 1
    assert len(set(labels)) == len(labels)


def test_the_report_command_writes_it_again(study: SearchResult) -> None:
    """In either language, with a trace for Perfetto on request."""
    runs = str(study.folder.parent)
    succeeded("report", "study", "--runs", runs, "--language", "zh", "--trace")
    assert '<html lang="zh">' in (study.folder / "report.html").read_text(encoding="utf-8")
    events = json.loads((study.folder / "trace.json").read_text())["traceEvents"]
    of_trial = [event for event in events if event["ph"] == "X" and event["args"].get("trial") == 0]
    assert [event["name"] for event in of_trial][:4] == ["compile", "verify", "measure", "observe"]
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    done = sktune_command("report", "study", "--runs", runs, "--language", "fr")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: --language: there is no 'fr'; choose en or zh"


def test_a_profile_after_needs_one_before(study: SearchResult, tmp_path: Path) -> None:
    """The line says which option is missing."""
    done = sktune_command("report", "study", "--runs", str(study.folder.parent), "--profile-after", str(tmp_path / "x"))
    assert done.returncode == BadInputError.exit_code
    assert "--profile" in done.stderr


def test_profiles_show_the_step_before_and_after(study: SearchResult, tmp_path: Path) -> None:
    """Every kernel is drawn, by what it is, and the table has the profile's own figures."""
    before, after = (
        profiles.write(tmp_path / name / "kernel_details.csv", profiles.kernel_details(profiles.deepseek(gap=gap)))
        for name, gap in (("before", 4), ("after", 1))
    )
    files = ("--profile", str(before), "--profile-after", str(after))
    succeeded("report", "study", "--runs", str(study.folder.parent), *files)
    page = (study.folder / "report.html").read_text(encoding="utf-8")
    page = page.partition('id="steps"')[2].partition("</section>")[0]
    for path in (before, after):
        profile = analyse(read_profile(path))
        figures = next(step for step in profile.steps if step.number == profile.shown_step)
        assert f"<td>{figures.step_ms:.3f}</td>" in page
        assert f"<td>{figures.gap_ms:.3f}</td>" in page
    kernels = "".join(re.findall(r'd="([^"]+)" class="k (?:kernel|superkernel|communication)"', page))
    assert kernels.count("M") == 2 * figures.kernels


def rows(runs: Path, name: str = "shared") -> list[tuple[object, ...]]:
    """Return the rows of the table of a study that runs on three dies."""
    with on_three_dies(runs, name) as study:
        section = workers(shown(result_of(study, runs)))
    assert section
    assert section.table
    return [tuple(row) for row in section.table.rows]


def test_the_table_says_what_each_die_does_and_has_done(tmp_path: Path) -> None:
    """Trials, leases, and what was lost or quarantined."""
    first, second, third = rows(tmp_path)
    assert first[:2] == ("npu 0", "npu")
    assert "running" in str(first[2])
    assert first[3] == "3, attempt 2"
    assert ":" in str(first[4])
    assert first[6:] == (1, "10.000", "")
    assert "free" in str(second[2])
    assert second[3] == ""
    assert "quarantined" in str(third[2])
    assert str(third[-1]).endswith("quarantined: slow")


def test_the_page_has_the_length_of_the_queue_while_it_runs(tmp_path: Path) -> None:
    """Afterwards leases are gone, and quarantines are still told, in both languages."""
    with on_three_dies(tmp_path) as study:
        assert "Running now: 1; waiting to be run again: 1." in page_html(result_of(study, tmp_path))
    for language in LANGUAGES:
        page = page_html(result_of(study, tmp_path), language)
        assert 'id="workers"' in page
        assert "Running now" not in page
        assert "slow</td>" in page


def test_the_live_page_follows_the_leases(tmp_path: Path) -> None:
    """It is made again when one is granted, before any trial ends."""
    shelf = Shelf(tmp_path)
    with on_three_dies(tmp_path) as study:
        before = shelf.page("shared", "/events", str)
        assert "<td>3, attempt 2</td>" in before
        Leases(study.storage.engine, "shared", study.records()[0].claim).grant(4, 2, "npu 1")
        assert "<td>4, attempt 2</td>" in shelf.page("shared", "/events", str)


def test_one_worker_is_not_shown(tmp_path: Path) -> None:
    """There is nothing to tell apart."""
    assert 'id="workers"' not in page_html(study_in(tmp_path, trials=3))


def test_the_report_says_which_die_ran_how_much(tmp_path: Path) -> None:
    """And which was quarantined; names of other machines are text. A single worker has no table."""
    with on_three_dies(tmp_path, prefix="a|b", why="slow") as study:
        text = report_markdown(result_of(study, tmp_path))
    _, _, table = text.partition("## Workers\n")
    first, *_, third = [line for line in table.partition("##")[0].splitlines() if line.startswith("| a")]
    assert first == "| a\\|b 0 | a\\|b | 1 | 10.000 |  |"
    assert third.endswith("quarantined: slow |")
    assert "## Workers" not in report_markdown(study_in(tmp_path, trials=3))


def test_labels_are_text(tmp_path: Path) -> None:
    """Hosts, dies and reasons come from other machines."""
    with on_three_dies(tmp_path, prefix=HOSTILE, why=HOSTILE) as study:
        page = page_html(result_of(study, tmp_path))
    section = page.partition('<section id="workers"')[2].partition("</section>")[0]
    assert "&lt;/script&gt;" in section
    assert "<script" not in section
    assert "<img" not in page
    assert "x" * 300 not in section


def test_show_has_a_line_for_each_die(tmp_path: Path) -> None:
    """And an event with the same."""
    with on_three_dies(tmp_path):
        lines = sktune_command("show", "shared", "--runs", str(tmp_path)).stdout.splitlines()
    assert any(line.startswith("npu 0: 1 trial, baseline 10.000 ms, runs trial 3 since ") for line in lines)
    assert any(line.startswith("npu 2: 1 trial, baseline 10.000 ms, quarantined ") for line in lines)
    assert lines[-1] == "1 trial runs now, 1 to be run again"
    (event,) = checked(sktune_command("show", "shared", "--runs", str(tmp_path), "--json").stdout)
    assert [worker["state"] for worker in event["workers"]] == ["ended", "ended", "quarantined"]
    study_in(tmp_path, trials=3)
    (event,) = checked(sktune_command("show", "study", "--runs", str(tmp_path), "--json").stdout)
    assert not event.get("workers")
