"""``sktune serve``: live pages for readers on this machine who know the secret, and nothing else for anybody."""

import http.client
import json
import math
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from sktune.core.outcome import Outcome
from sktune.core.shapes import StepShape
from sktune.samplers import find_strategy
from sktune.server.serve import serve
from sktune.server.shelf import Shelf
from sktune.study.result import SearchResult
from sktune.study.shapes import ShapesRecord, ShapeStudy
from sktune.study.snapshot import snapshot, state_of
from sktune.study.study import TuningStudy, sqlite_url
from tests.builders import checked, sktune_command, succeeded
from tests.guard import no_hang
from tests.reports.page_studies import HOSTILE, measured, space_of, study_in

READERS = 40


class Served:
    """A running server, and requests to it."""

    def __init__(self, runs: Path, storage: str | None = None, idle_s: float = math.inf) -> None:
        self.runs = runs
        started = threading.Event()
        urls: list[str] = []

        def ready(url: str) -> None:
            urls.append(url)
            started.set()

        self._thread = threading.Thread(target=serve, args=(Shelf(runs, storage), 0, None, idle_s, ready), daemon=True)
        self._thread.start()
        assert started.wait(30)
        self.url = urls[0]
        self.port = urlsplit(self.url).port or 0
        self.token = urlsplit(self.url).path.strip("/")

    def get(self, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, http.client.HTTPMessage]:
        """Return status, text and headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host or f"127.0.0.1:{self.port}")
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def page(self, study: str) -> tuple[int, str, http.client.HTTPMessage]:
        """Return the answer for a study's page."""
        return self.get(f"/{self.token}/study/{quote(study, safe='')}")

    def events(self, study: str) -> http.client.HTTPResponse:
        """Return the open stream of a study's events."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", f"/{self.token}/events/{quote(study, safe='')}")
        return connection.getresponse()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with two studies, one of which has a hostile name."""
    runs = tmp_path_factory.mktemp("served") / "runs"
    study_in(runs, "study")
    study_in(runs, HOSTILE, trials=2, final=False)
    with no_hang(300):
        yield Served(runs)


def test_a_page_is_the_reports_and_follows_its_study(served: Served) -> None:
    """It names the stream of its events, and its policy allows that connection alone."""
    status, page, headers = served.page("study")
    assert status == 200
    assert f'data-events="/{served.token}/events/study"' in page
    assert "connect-src &#39;self&#39;" in page
    assert "1.0" in page
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers


def test_the_index_links_to_every_study(served: Served) -> None:
    """Names are text, whatever they contain."""
    status, page, _ = served.get(f"/{served.token}/")
    assert status == 200
    assert page.startswith("<!DOCTYPE html>")
    links = re.findall(r'href="(/[^"]+)"', page)
    assert len(links) == 2
    assert all(served.get(link)[0] == 200 for link in links)
    assert "<script" not in page


def test_a_study_of_several_shapes_leads_to_those_of_each(tmp_path: Path) -> None:
    """In the index, on its page, and in the list of studies."""
    names = ["all.batch-1", "all.batch-8"]
    for name in names:
        study_in(tmp_path, name, trials=3, final=False)
    shapes = [ShapeStudy(StepShape(batch=batch), name) for batch, name in zip((1, 8), names, strict=True)]
    ShapesRecord("all", tuple(shapes), trials=3).write(tmp_path / "all")
    shelf = Shelf(tmp_path)
    assert shelf.names()[0] == "all"
    assert ">all</a>" in shelf.index("/study/{}".format)
    page = shelf.page("all", "/events", "/study/{}".format)
    assert "Not every shape has its final comparison yet" in page
    assert '<meta http-equiv="refresh"' in page
    assert all(f'href="/study/{name}"' in page for name in names)
    assert "batch=8" in page
    listed = json.loads(succeeded("studies", "--runs", str(tmp_path), "--json").stdout)["studies"]
    assert {row["study"]: row["trials"] for row in listed} == {"all": 6, **dict.fromkeys(names, 3)}


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/", "GET", None, 404),
        ("/wrong/", "GET", None, 404),
        ("/{token}", "GET", "127.0.0.1:{port}", 307),
        ("/{token}/", "GET", "evil.example", 404),
        ("/{token}/", "GET", "evil.example:{port}", 404),
        ("/{token}/", "GET", "localhost:{port}", 200),
        ("/{token}/", "POST", None, 405),
        ("/{token}/study/study", "DELETE", None, 405),
        ("/{token}/../../etc/passwd", "GET", None, 404),
        ("/{token}/study.db", "GET", None, 404),
        ("/{token}/study/study/study.db", "GET", None, 200),
    ],
)
def test_nothing_else_is_reached(served: Served, path: str, method: str, host: str | None, status: int) -> None:
    """No other address, method or host; a path is the name of a study, of which there may be none yet."""
    values = {"token": served.token, "port": served.port}
    answer, text, _ = served.get(path.format(**values), method, host.format(**values) if host else None)
    assert answer == status
    assert "root:" not in text
    if path.endswith("study.db") and status == 200:
        assert "No trial yet" in text


def test_reading_writes_nothing(served: Served) -> None:
    """Neither into the study nor beside it, but in SQLite's own table of who is reading (``-shm``)."""
    folder = served.runs / "study"

    def state() -> dict[str, tuple[int, bytes]]:
        return {
            path.name: (path.stat().st_mtime_ns, path.read_bytes())
            for path in folder.iterdir()
            if path.is_file() and path.suffix != ".db-shm"
        }

    before = state()
    for _ in range(3):
        assert served.page("study")[0] == 200
    served.get(f"/{served.token}/")
    assert state() == before


def test_many_readers_hear_of_a_new_trial_and_see_it(tmp_path: Path) -> None:
    """All follow one study while its search goes on, and the search never waits for them."""
    runs = tmp_path / "runs"
    result = study_in(runs, "live", trials=3, final=False)
    assert result.facts.layout
    served = Served(runs)
    streams = [served.events("live") for _ in range(READERS)]
    assert all(stream.readline() == b"retry: 2000\n" for stream in streams)
    study = TuningStudy.open("live", sqlite_url(runs / "live"), create=False)
    space = space_of(result.facts.layout)
    proposal = study.ask(space, find_strategy("random"), seed=1)
    began = time.monotonic()
    study.tell(proposal, Outcome(speedup=measured(1.5)), 10 / 1.5)
    assert time.monotonic() - began < 10

    def heard(stream: http.client.HTTPResponse) -> bytes:
        while (line := stream.readline()) and not line.startswith(b"event"):
            pass
        return line

    with ThreadPoolExecutor(READERS) as pool:
        assert set(pool.map(heard, streams)) == {b"event: change\n"}
        pages = set(pool.map(lambda _: served.page("live")[1], range(READERS)))
    (page,) = pages
    data = json.loads(re.search(r'id="data">(.*?)</script>', page).group(1))  # type: ignore[union-attr]
    assert [trial["s"] for trial in data["trials"] if trial["n"] == proposal.number] == [1.5]
    for stream in streams:
        stream.close()


def test_a_study_that_changes_faster_than_its_page_is_made_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits while a page is made gets the next one, which is not older than their question."""
    result = study_in(tmp_path / "runs", "quick", trials=2, final=False)
    assert result.facts.layout
    study = TuningStudy.open("quick", sqlite_url(result.folder), create=False)
    space = space_of(result.facts.layout)
    asked, made = threading.Barrier(READERS), list[str]()

    def slow_page(shown: SearchResult, *_: object, **__: object) -> str:
        time.sleep(0.5)
        proposal = study.ask(space, find_strategy("random"), seed=len(made))
        study.tell(proposal, Outcome(speedup=measured(1.5)), 10 / 1.5)
        made.append(f"{len(shown.trials)} trials")
        return made[-1]

    monkeypatch.setattr("sktune.server.shelf.page_html", slow_page)
    served = Served(tmp_path / "runs")

    def read(_: int) -> str:
        asked.wait(30)
        return served.page("quick")[1]

    with ThreadPoolExecutor(READERS) as pool:
        assert set(pool.map(read, range(READERS))) == set(made)
    assert len(made) <= 3
    assert served.page("quick")[1] == f"{2 + len(made) - 1} trials"


def test_a_study_may_begin_after_its_page(tmp_path: Path) -> None:
    """The page is empty at first, and its readers hear of the first trial."""
    served = Served(tmp_path / "runs")
    assert "No trial yet" in served.page("later")[1]
    stream = served.events("later")
    assert stream.readline() == b"retry: 2000\n"
    study_in(tmp_path / "runs", "later", trials=2, final=False)
    lines = [stream.readline() for _ in range(2)]
    assert b"event: change\n" in lines
    assert "No trial yet" not in served.page("later")[1]
    stream.close()


def test_a_damaged_study_does_not_end_the_server(tmp_path: Path) -> None:
    """It is named in one line, and the others are served."""
    runs = tmp_path / "runs"
    study_in(runs, "sound", trials=2, final=False)
    study_in(runs, "broken", trials=2, final=False)
    (runs / "broken" / "study.db").write_bytes(b"not a database" * 100)
    for extra in ("study.db-wal", "study.db-shm"):
        (runs / "broken" / extra).unlink(missing_ok=True)
    served = Served(runs)
    status, text, _ = served.page("broken")
    assert status == 404
    assert "cannot be read" in text
    assert len(text.splitlines()) == 1
    assert served.page("sound")[0] == 200
    assert "sound" in served.get(f"/{served.token}/")[1]
    (runs / "several").mkdir()
    (runs / "several/shapes.json").write_text("{")
    index = served.get(f"/{served.token}/")[1]
    assert "sound" in index and "shapes.json cannot be read" in index


def test_studies_of_a_storage_are_served(tmp_path: Path) -> None:
    """Of any URL that Optuna can open."""
    result = study_in(tmp_path / "runs", "stored", trials=2, final=False)
    served = Served(tmp_path / "elsewhere", sqlite_url(result.folder))
    assert "stored" in served.get(f"/{served.token}/")[1]
    assert served.page("stored")[0] == 200


def test_it_ends_when_nobody_reads(tmp_path: Path) -> None:
    """So that one started by a search does not stay for ever; a port that is taken is an error with its fix."""
    served = Served(tmp_path, idle_s=2.0)
    taken = sktune_command("serve", "--runs", str(tmp_path), "--port", str(served.port))
    assert taken.returncode == 2
    assert re.fullmatch(r"error: --port \d+: .*; choose another, or 0 for any", taken.stderr.strip())
    served._thread.join(30)
    assert not served._thread.is_alive()


def test_the_end_of_a_search_on_a_storage_is_noticed(tmp_path: Path) -> None:
    """Its verdict comes after its last trial; the URL is one that is not read as a file."""
    result = study_in(tmp_path / "runs", "stored", trials=8, final=False)
    url = f"sqlite+pysqlite:///{result.folder / 'study.db'}"
    before = state_of(url)
    assert state_of(url) == before
    study = TuningStudy.open("stored", sqlite_url(result.folder), create=False)
    study.remember(final_trials=8, seconds=200.0)
    assert state_of(url) != before
    assert snapshot("stored", url, result.folder).facts.final_trials == 8


@pytest.mark.slow
def test_a_search_with_open_starts_a_server_that_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is printed, and given to a browser, which follows the search; it ends when nobody reads."""
    opened: list[str] = []
    followed: list[http.client.HTTPResponse] = []

    def browse(url: str) -> None:
        opened.append(url)
        followed.append(urllib.request.urlopen(url.replace("/study/", "/events/"), timeout=60))

    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr("sktune.server.serve.IDLE_MINUTES", 0.15)
    done = sktune_command("search", "--model", "llama", "--backend", "sim", "--trials", "1", "--study", "opened",
                          "--runs", str(tmp_path), "--open", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    served = next(event for line in done.stdout.splitlines() if (event := json.loads(line))["event"] == "page_served")
    assert opened == [served["url"]]
    with urllib.request.urlopen(served["url"], timeout=30) as answer:
        assert "opened" in answer.read().decode()
    followed.pop().close()
    with no_hang(90), pytest.raises(OSError):
        while True:
            with socket.create_connection(("127.0.0.1", urlsplit(served["url"]).port or 0), timeout=5):
                time.sleep(1)


def test_a_study_that_does_not_exist_is_not_served(tmp_path: Path) -> None:
    """The message has the studies that there are; a page that shall never end has no time without readers."""
    study_in(tmp_path, "study", trials=2, final=False)
    done = sktune_command("serve", "stady", "--runs", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "error: there is no study 'stady'; did you mean 'study'?\n")
    assert sktune_command("serve", "--idle-minutes", "nan", "--runs", str(tmp_path)).returncode == 2


@pytest.mark.parametrize("host", ["LOCALHOST", "LocalHost:1"])
def test_names_of_this_machine_have_no_case(tmp_path: Path, host: str) -> None:
    """As RFC 9110 says of hosts."""
    served = Served(tmp_path)
    assert served.get(f"/{served.token}/", host=host)[0] == 200


def test_the_studies_are_listed_newest_first(tmp_path: Path) -> None:
    """By ``studies``, and by ``show`` without a study; one that cannot be read says why."""
    study_in(tmp_path, "older", trials=2, final=False)
    study_in(tmp_path, "a:b:c", trials=8)
    done = sktune_command("studies", "--runs", str(tmp_path), "--json")
    (event,) = checked(done.stdout)
    rows = event["studies"]
    assert {row["study"]: row["trials"] for row in rows} == {"a:b:c": 8, "older": 2}
    assert [row["changed"] for row in rows] == sorted((row["changed"] for row in rows), reverse=True)
    assert "final comparison" in next(row["verdict"] for row in rows if row["study"] == "older")
    shown = succeeded("show", "--runs", str(tmp_path))
    assert "a:b:c" in shown.stdout
    assert "no studies in" in sktune_command("show", "--runs", str(tmp_path / "none")).stdout
    assert sktune_command("show", "--why", "--runs", str(tmp_path)).returncode == 2
