"""Documents and files made to hang, to crash or to deceive: refused in one line, whatever reads them.

Logs, traces, databases, reports of ranks, and configurations among them.
"""

import json
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sktune.ascend.cann_log import MAX_LINE_LENGTH, explain_files
from sktune.ascend.ge_graph import read_ge_graph
from sktune.core.errors import BadInputError, PlanError, ProfileError, SktuneError, TargetError
from sktune.core.events.lines import parse_event
from sktune.core.files import read_text, without_spaces
from sktune.core.plain_data import MAX_DEPTH, finite, load_json, load_yaml
from sktune.core.plan_file import read_plan_file
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


BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20))])
DOCUMENTS = {
    "aliases that expand to 9^19 values": (BOMB, "more than 100,000 values"),
    "an alias for what contains it": ("a: &a [*a]", "an alias for a value that contains it"),
    "deep brackets": ("a: " + "[" * 500, "more than 64 levels"),
    "deep mappings": ("\n".join(" " * n + "a:" for n in range(500)), "more than 64 levels"),
    "a date that does not exist": ("a: 2001-13-45", "a value cannot be read (month must be in 1..12"),
    "a number of 5,000 digits": ("a: " + "1" * 5000, "a number of 5000 characters"),
    "a number in base 60": ("a: 1" + ":59" * 5000, "a number of 15001 characters"),
    "a tag that its value does not have": ("a: !!int x", "a value cannot be read"),
    "an object of Python": ("a: !!python/object/apply:os.system [true]", "this is not YAML"),
    "a terminal's command": (r'a: "\e[2J"', "control character"),
    "half a character": (r'a: "\ud800"', "control character"),
    "a null character": (r'a: "\0"', "control character"),
    "a list as a key": ("? [a]\n: 1", "unhashable key"),
    "two documents": ("a: 1\n---\nb: 2", "this is not YAML"),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_yaml_beyond_the_limits_is_refused_in_one_line(case: str) -> None:
    """Before values are made of it."""
    text, reason = DOCUMENTS[case]
    with no_hang(), pytest.raises(BadInputError) as failure:
        load_yaml(text, "x.yaml", BadInputError)
    assert reason in str(failure.value)
    assert len(str(failure.value).splitlines()) == 1 and len(str(failure.value)) < 500


def test_aliases_and_merge_keys_within_the_limits_are_read() -> None:
    """Users write them."""
    text = "base: &b {x: 1, y: [1, 2]}\nother: {<<: *b, x: 2}\nsame: *b\n"
    assert load_yaml(text, "x", BadInputError) == yaml.safe_load(text)


def test_a_plan_with_aliases_that_expand_is_refused(tmp_path: Path) -> None:
    """1.2 kB that stood for more values than fit into memory."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"version: 1\nplan: {{scopes: []}}\nevidence:\n  {BOMB.replace(chr(10), chr(10) + '  ')}\n")
    with no_hang(), pytest.raises(PlanError, match=r"plan.yaml:\d+: this is not YAML \(more than 100,000 values"):
        read_plan_file(path)


def test_a_wrong_value_is_quoted_in_part(tmp_path: Path) -> None:
    """However long it is."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"version: 1\nplan: {{scopes: {'x' * 100_000}}}\n")
    with pytest.raises(PlanError) as failure:
        read_plan_file(path)
    assert len(str(failure.value)) < 1000


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2)])
def test_deep_json_is_refused_in_one_line(text: str) -> None:
    """And is no event."""
    with no_hang(), pytest.raises(BadInputError, match=r"x is not JSON .*; fix it") as failure:
        load_json(text, "x", BadInputError, "fix it")
    assert len(str(failure.value).splitlines()) == 1
    assert parse_event(text) is None


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "loop", "too large", "UTF-16", "unreadable"])
def test_what_is_no_text_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Instead of being waited for, or read for ever."""
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "too large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "UTF-16":
        path.write_text("version: 1", encoding="utf-16")
    elif os.geteuid() == 0:
        path = path / "\0"
    else:
        path.touch(0o000)
    with no_hang(), pytest.raises(BadInputError, match=r"cannot be read \(.*\); give another$"):
        read_text(path, BadInputError, "give another")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60)
@given(PLAIN)
def test_json_is_read_as_the_standard_library_reads_it(value: object) -> None:
    """Within the limits, nothing is changed and nothing but half characters refused."""
    text = json.dumps(value)
    try:
        read = load_json(text, "x", BadInputError, "fix it")
    except BadInputError as failure:
        assert "half characters" in str(failure)
    else:
        assert json.dumps(read) == text


@settings(max_examples=100)
@given(st.text(alphabet=st.sampled_from("{}[]&*!<>:-?,|'\"#%@`~ \n\ta0.1eE+_xX\\\0\ufeff\x85")))
def test_any_text_is_a_document_or_refused_in_one_line(text: str) -> None:
    """PyYAML has other exceptions than its own."""
    with no_hang():
        try:
            load_yaml(text, "x.yaml", BadInputError)
        except BadInputError as failure:
            assert len(str(failure).splitlines()) == 1
