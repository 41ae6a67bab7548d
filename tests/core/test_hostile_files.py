"""Files made to hang or crash their readers: logs, traces, databases, reports of ranks, configurations."""

import json
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sktune.ascend.cann_log import MAX_LINE_LENGTH, explain_files
from sktune.ascend.ge_graph import read_ge_graph
from sktune.core.errors import BadInputError, ProfileError, SktuneError, TargetError
from sktune.core.files import without_spaces
from sktune.core.plain_data import finite, load_yaml
from sktune.profiling.readers.reading import read_profile
from sktune.recipes.rank_reports import read_reports
from sktune.study.storage import shown
from sktune.study.study import TuningStudy
from sktune.targets import FunctionSpec, RecipeSpec
from sktune.targets.configuration import check_configuration
from tests import profiles
from tests.guard import no_hang


def test_a_log_of_one_long_line_is_read_in_pieces(tmp_path: Path) -> None:
    """Patterns take quadratic time; what a piece says is found nevertheless."""
    path = tmp_path / "plog.log"
    line = "find super kernel sub op " * 13_000 + "(" * 20_000
    path.write_text(f"{line}\n[ERROR] do not support more than 2 real stream\n")
    with no_hang():
        (only,) = explain_files([path])
    assert only.kind == "streams" and len(line) > 50 * MAX_LINE_LENGTH


def test_a_trace_of_nested_values_is_refused(tmp_path: Path) -> None:
    """And one with nested values among its events says that it is cut off."""
    path = tmp_path / "trace.json"
    path.write_text("[" * 200_000)
    with no_hang(), pytest.raises(ProfileError):
        read_profile(path)
    whole = profiles.gpu_trace(profiles.deepseek(1, 1, 1))
    path.write_text(whole[: whole.rindex("}]")] + '}, {"a": ' + "[" * 200_000)
    with no_hang():
        table = read_profile(path)
    assert len(table.frame) and any("truncated" in line for line in table.warnings)


TIMES = {
    "no number": "x", "nan": float("nan"), "inf": float("inf"), "large": 10**30, "small": -(10**30), "text": "9" * 400,
    "a list": [1], "nothing": None, "other digits": "1.²",
}  # fmt: skip


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize("case", TIMES)
def test_an_event_without_a_time_is_left_out_of_a_trace(case: str, key: str, tmp_path: Path) -> None:
    """All of it: columns of a table have one length."""
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.0, "args": {"correlation": 10**30}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([event, event | {key: TIMES[case]}, event | {"ts": 9.0}]))
    table = read_profile(path)
    assert len(table.frame) == 2
    assert any("1 of 3 events have no valid time" in line for line in table.warnings)


@pytest.mark.parametrize("number", ["1e999", "nan", "-1e30", "x", "9" * 400])
def test_a_row_with_an_absurd_number_does_not_end_the_reading(number: str, tmp_path: Path) -> None:
    """In any column of a kernel table."""
    text = profiles.kernel_details(profiles.deepseek(1, 1, 1))
    header, first, *rest = text.splitlines()
    for column in range(len(header.split(","))):
        cells = first.split(",")
        cells[column] = number
        path = tmp_path / "kernel_details.csv"
        path.write_text("\n".join([header, ",".join(cells), *rest, ""]))
        assert len(read_profile(path).frame) >= len(rest)


@pytest.mark.parametrize("header", ["x" * 200_000, "Name,Name,Start Time(us),Duration(us)"])
def test_a_strange_header_is_read_or_refused(header: str, tmp_path: Path) -> None:
    """One of a single long field, and one with a column twice."""
    path = tmp_path / "kernel_details.csv"
    path.write_text(f"{header}\nMatMul,MatMul,1.0,2.0\n")
    try:
        assert len(read_profile(path).frame) == 1
    except ProfileError as failure:
        assert len(str(failure).splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["op {" * 10_000, "a" + " " * 300_000 + "x", "a" * 300_000, 'op { name: "' + "\\" * 100_000]
)
def test_a_graph_dump_made_to_hang_is_refused(text: str, tmp_path: Path) -> None:
    """Deep messages, and text that a pattern could read in many ways."""
    path = tmp_path / "dump.txt"
    path.write_text(text)
    with no_hang(), pytest.raises(BadInputError) as failure:
        read_ge_graph(path)
    assert len(str(failure.value).splitlines()) == 1


def test_a_number_of_inputs_is_not_believed(tmp_path: Path) -> None:
    """It would fill the memory."""
    path = tmp_path / "ge_onnx.pbtxt"
    nodes = 'attribute { name: "input_desc_nums" i: 999999999999 }'
    path.write_text(f'graph {{ node {{ name: "a" op_type: "ge:NetOutput" {nodes} }} }}')
    with no_hang():
        assert read_ge_graph(path).operators[0].type == "NetOutput"


URLS = {
    "postgresql://me:secret@host/db": "postgresql://me:***@host/db",
    "mysql+pymysql://me:se/cr:et@host:1/db": "mysql+pymysql://me:***@host:1/db",
    "postgresql://host/db?user=me&password=secret&x=1": "postgresql://host/db?user=me&password=***&x=1",
    "sqlite:///runs/a@b.db": "sqlite:///runs/a@b.db",
    "sqlite:///study.db": "sqlite:///study.db",
}


@pytest.mark.parametrize("url", URLS)
def test_a_storage_is_shown_without_its_password(url: str) -> None:
    """And otherwise as it is."""
    assert shown(url) == URLS[url]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@127.0.0.1:1/db", "nothing://me:hunter2@host/db", "postgresql://me:hunter2/x@host/db",
        "mysql://me:hunter2@host:port/db", "postgresql://host/db?password=hunter2",
    ],
)  # fmt: skip
def test_no_error_of_a_storage_has_the_password(url: str) -> None:
    """Whether the driver, the port or the server is missing."""
    with pytest.raises(SktuneError) as failure:
        TuningStudy.open("s", url, create=True)
    assert "hunter2" not in str(failure.value)
    assert len(str(failure.value).splitlines()) == 1


REPORTS: dict[str, bytes] = {
    "not an object": b"[1]\n",
    "no event": b'{"x": 1}\n',
    "another type": b'{"event": "steps", "seconds": "abc", "baselines": [true]}\n',
    "lengths that differ": b'{"event": "steps", "seconds": [1], "baselines": []}\n',
    "a digest without a number": b'{"event": "outputs", "kind": "", "digests": {"a": "b"}}\n',
    "a tree without modules": b'{"event": "tree", "function": "f", "classes": [], "parameters": [], "modules": []}\n',
    "a child that is missing": b'{"event": "tree", "function": "f", "classes": [["A", "A", ""]], "parameters": [], '
    b'"modules": [[0, [["a", -1]], []]]}\n',
    "a call of no tree": b'{"event": "found", "call": {"function": "f"}, "calls": 1, "parameters": 1, '
    b'"ran": [["a", 0, 1, null, "", false]], "times": []}\n',
}


@pytest.mark.parametrize("case", REPORTS)
def test_a_damaged_report_of_a_rank_is_its_error(case: str, tmp_path: Path) -> None:
    """With the line; lines that are no JSON may be unfinished, and files of other names are no reports."""
    (tmp_path / "rank-0.jsonl").write_bytes(
        b'{"event": "start", "format": 1, "pid": 1, "host": 0}\n' + REPORTS[case] + b"\xff{" + b"[" * 9999
    )
    (tmp_path / "rank-x.jsonl").write_bytes(b"")
    (report,) = read_reports(tmp_path)
    assert report.pid == 1
    assert report.error and report.error[1].startswith("line 2 of its report rank-0.jsonl is damaged")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to(path),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
    ],
    ids=["a dangling link", "a link to itself", "a pipe", "a folder"],
)
def test_a_recipes_folder_may_hold_anything(make: Callable[[Path], None], tmp_path: Path) -> None:
    """Under the name of a source, too; what the link says counts."""
    (tmp_path / "recipe.yaml").write_text("version: 1\nname: r\ncommand: 'true'\nbackend: inductor\n")
    spec = RecipeSpec.of_file(tmp_path / "recipe.yaml", 0, lambda backend: "cpu")
    before = spec.fingerprint()
    make(tmp_path / "program.py")
    with no_hang():
        assert len(spec.fingerprint()) == len(before)


SIZES: dict[str, dict[str, object]] = {
    "layers": {"num_hidden_layers": 10**7}, "width": {"hidden_size": 10**12}, "deep": {"a": [{"b": -(10**12)}]},
    "infinite": {"rms_norm_eps": float("inf")}, "no number": {"hidden_size": float("nan")},
}  # fmt: skip


@pytest.mark.parametrize("case", SIZES)
def test_absurd_sizes_of_a_model_are_refused(case: str, tmp_path: Path) -> None:
    """Before transformers builds what they say."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES[case]}))
    with pytest.raises(TargetError, match=r"config.json: .* is .*, and the limit is [0-9,]+; fix it"):
        check_configuration(tmp_path)


def test_numbers_that_json_does_not_know_can_be_written() -> None:
    """A YAML may have them, even as keys: ``.nan: .inf``."""
    values = load_yaml("{.nan: [.inf, 1.5], 2: -.inf}", "a YAML", TargetError)
    assert json.dumps(finite(values), allow_nan=False) == '{"nan": [null, 1.5], "2": null}'


def test_large_numbers_that_are_no_sizes_are_accepted(tmp_path: Path) -> None:
    """Gemma 3n clips gradients at 1e10, and rotary bases of models with long contexts are larger than 2**31."""
    values = {"audio_config": {"gradient_clipping": 1e10}, "rope_theta": 3580165449.0, "text": {"rope_theta": 10**10}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **values}))
    check_configuration(tmp_path)


def test_a_function_spec_needs_no_import() -> None:
    """So what an agent may run can be checked before it runs."""
    assert FunctionSpec.of_model("antigravity:target").place == "antigravity"


@pytest.mark.parametrize("name", ["a b", "it's", 'a"b', "a\\b", "a\tb"])
def test_compilers_get_a_path_that_needs_no_quotes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, the same for all processes; what another one has put in its place is refused."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / name
    link = without_spaces(folder)
    assert folder.is_dir()
    assert (link.resolve(), link) == (folder.resolve(), without_spaces(folder))
    assert name not in str(link) and shlex.split(str(link)) == [str(link)]
    link.unlink()
    link.symlink_to(tmp_path)
    with pytest.raises(
        BadInputError, match=r"is not sktune's link to .*; delete it, or name another folder with --runs"
    ):
        without_spaces(folder)
    assert without_spaces(tmp_path) == tmp_path
