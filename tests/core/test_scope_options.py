"""SuperKernel options: every mistake is rejected before anything is compiled, with its fix."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sktune.core.errors import SpaceError
from sktune.core.plan import Option
from sktune.core.scope_options import (
    SUPERKERNEL_OPTIONS,
    check_option,
    check_options,
    normalise,
    option_defaults,
    options_table,
    parse,
    render,
)
from tests.builders import ROOT

DOCUMENT = ROOT / "docs" / "reference" / "superkernel_options.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"

flags = st.integers(0, 1)
types = st.lists(st.from_regex(r"[A-Z][A-Za-z0-9]{0,12}", fullmatch=True), min_size=1, max_size=4).map(",".join)
legal: st.SearchStrategy[dict[str, Option]] = st.fixed_dictionaries(
    {},
    optional={
        "stream-fusion": flags,
        "early-start": st.integers(0, 2),
        "preload-code": st.sampled_from(["per-func", "max", "none"]),
        "split-mode": st.integers(1, 64),
        "func-align": st.sampled_from([0, 2, 256, 512, 1024]),
        "dcci-before-kernel-start": types,
        "dcci-after-kernel-end": types,
        "feed-sync-all": flags,
        "strict-scope-check": st.sampled_from(["bypass", "abort"]),
        "debug-aic-num": st.integers(1, 24),
        "profiling": flags,
        "debug-sync-all": flags,
        "debug-dcci-all": flags,
        "compile-options": st.sampled_from(["-g", "-g,-O2", "-DX=1"]),
    },
)


@given(legal)
def test_rendered_options_are_parsed_back(options: dict[str, Option]) -> None:
    """A plan's options survive being written into a model's source and read back."""
    assert parse(render(options)) == options


@given(legal, st.randoms())
def test_equal_options_give_one_string(options: dict[str, Option], random: Any) -> None:
    """All blocks of one scope must have the same text, whatever the order of the options."""
    names = list(options)
    random.shuffle(names)
    assert render({name: options[name] for name in names}) == render(options)


@given(legal)
def test_normalising_is_idempotent(options: dict[str, Option]) -> None:
    """The remaining options are legal and differ from the defaults."""
    normal = normalise(options)
    assert normalise(normal) == normal
    assert all(normal[name] != option_defaults()[name] for name in normal)


@given(legal, legal)
def test_an_option_at_its_default_equals_none(options: dict[str, Option], other: dict[str, Option]) -> None:
    """Two sets that compile to the same thing are equal: the search tries only one of them."""
    explicit = {name: option_defaults()[name] for name in other if option_defaults()[name] != ""}
    assert normalise(explicit | options) == normalise(options)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("stream-fusion=1:early-start=2", "stream-fusion=1"),
        ("stream-fusion=1:early-start=1", "stream-fusion=1"),
        ("stream-fusion=0:early-start=1", ""),
        ("dcci-after-kernel-end=B,A,B", "dcci-after-kernel-end=A,B"),
    ],
)
def test_options_without_effect_are_removed(text: str, same: str) -> None:
    """With stream-fusion sub-kernels have no hooks for early start, as with 2; a list of operator types is a set."""
    assert normalise(parse(text)) == normalise(parse(same))


@pytest.mark.parametrize("options", [{"early-start": 0}, {"early-start": 0, "stream-fusion": 1}])
def test_full_barriers_are_kept(options: dict[str, Option]) -> None:
    """On one stream the generator writes them with stream-fusion, too."""
    assert normalise(options) == options


@pytest.mark.parametrize("text", ["", ":", " : ", '""'])
def test_no_options_are_an_empty_string(text: str) -> None:
    """The compiler drops blanks and empty parts; TorchAir only accepts text, so no options are written as ''."""
    assert parse(text) == {}
    assert render({}) == ""


def test_blanks_quotes_and_outer_colons_are_read_as_the_compiler_reads_them() -> None:
    """Only what the compiler rejects is rejected."""
    text = '": stream-fusion = 1 :: dcci-before-kernel-start=MatMulV2,Add :"'
    assert parse(text) == {"stream-fusion": 1, "dcci-before-kernel-start": "MatMulV2,Add"}


MISTAKES = [
    ("stream-funsion=1", "did you mean 'stream-fusion'"),
    ("colour=red", "no option 'colour'; known: compile-options"),
    ("=1", "no name before '=1'; write name=value"),
    ("stream-fusion=", "has no value; give one"),
    ("stream-fusion=1:stream-fusion=1", "given twice; leave one out"),
    ("stream-fusion=2", "stream-fusion must be 0 or 1, got '2'"),
    ("stream-fusion=01", "stream-fusion must be 0 or 1, got '01'"),
    ("stream-fusion=True", "stream-fusion must be 0 or 1, got 'True'"),
    ("early-start=3", "early-start must be 0, 1 or 2"),
    ("early-start=-1", "early-start must be 0, 1 or 2"),
    ("preload-code=all", "preload-code must be one of per-func, max, none"),
    ("split-mode=0", "split-mode must be 1 to 64"),
    ("split-mode=65", "split-mode must be 1 to 64"),
    ("split-mode=4.0", "split-mode must be 1 to 64"),
    ("func-align=1", "0 or a power of two"),
    ("func-align=768", "0 or a power of two"),
    ("feed-sync-all=yes", "feed-sync-all must be 0 or 1"),
    ("strict-scope-check=warn", "strict-scope-check must be one of bypass, abort"),
    ("strict-scope-check=abort=1", "strict-scope-check must be one of bypass, abort, got 'abort=1'"),
    ("dcci-before-kernel-start=Add,,Mul", "operator types, joined by commas"),
    ("dcci-before-kernel-start=.*", "operator types, joined by commas"),
    ("debug-aic-num=0", "debug-aic-num must be 1 to 24"),
    ("debug-aiv-num=49", "debug-aiv-num must be 1 to 48"),
    ("link-mode=1", "its parser rejects it; leave it out"),
    ("preload-data=1", "its parser rejects it; leave it out"),
    ("option_xxx2", "is not an option, and GE would skip it; write name=value"),
    ("dcci-disable-on-kernel=Add:dcci-before-kernel-start=Mul,Add", "overrides dcci-before-kernel-start for Add"),
    ("dcci-disable-on-kernel=Add:dcci-after-kernel-end=Add", "overrides dcci-after-kernel-end for Add"),
    ("debug-aic-num=8:debug-aiv-num=12", "use 8 or 16"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_rejected_before_compiling(text: str, message: str) -> None:
    """Anything that would fail as EB0500, or be skipped by GE, is a one-line error that names the fix."""
    with pytest.raises(SpaceError) as error:
        parse(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


fragments = st.sampled_from([*SUPERKERNEL_OPTIONS, "=", ":", ",", "0", "1", "MatMul", "-g", " ", '"', "\n"]) | st.text(
    max_size=3
)


@example("=stream-fusion\nstream-fusion")
@given(st.lists(fragments, max_size=8).map("".join))
def test_any_text_is_options_or_one_line(text: str) -> None:
    """Accepted text can be written again with the same meaning; all other text is an error that says why."""
    try:
        options = parse(text)
    except SpaceError as error:
        assert "\n" not in str(error)
    else:
        assert parse(render(options)) == options


@pytest.mark.parametrize("options", [None, 0, {"stream-fusion": 1}])
def test_options_that_are_not_text_are_rejected(options: Any) -> None:
    """A None passed to TorchAir fails deep inside the trace."""
    with pytest.raises(SpaceError, match=r"options of a scope must be text, got .*; write ''"):
        parse(options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream-fusion", True),
        ("stream-fusion", "1"),
        ("split-mode", 4.0),
        ("compile-options", "a:b"),
        ("dcci-disable-on-kernel", ""),
        ("", 1),
        ("dcci-after-kernel-end", None),
    ],
)
def test_typed_values_are_checked_like_text(name: str, value: Any) -> None:
    """A plan's options never become a string that the compiler rejects."""
    with pytest.raises(SpaceError):
        check_options({name: value})
    with pytest.raises(SpaceError):
        render({name: value})


def test_defaults_and_choices_are_legal() -> None:
    """The table follows its own rules, and the first choice is the default."""
    for option in SUPERKERNEL_OPTIONS.values():
        for value in option.choices:
            check_option(option.name, value)
        if option.choices:
            assert option.choices[0] == option.default


def test_a_search_may_leave_an_option_out() -> None:
    """The empty value means "not given" for an option without a default; for others it is an error."""
    check_option("dcci-before-kernel-start", "")
    for name in ("split-mode", "preload-code", "colour"):
        with pytest.raises(SpaceError):
            check_option(name, "")


def test_only_searched_options_and_the_rescue_have_choices() -> None:
    """Probes and diagnosis change the timing, so no search draws them."""
    assert {option.role for option in SUPERKERNEL_OPTIONS.values() if option.choices} == {"searched", "rescue"}


def with_table(text: str) -> str:
    """Return the document with the table generated from code."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + options_table() + END + rest.partition(END)[2]


def test_the_document_shows_the_table() -> None:
    """``python -m tests.core.test_scope_options`` writes it again."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == with_table(text)


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
