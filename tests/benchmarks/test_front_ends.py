"""The page of front ends is that of the stored rows."""

from benchmarks.front_ends import PAGE, page, read_rows
from sktune.ascend.front_ends import front_end, front_ends


def test_the_page_is_that_of_the_rows() -> None:
    """Of every release that is called tested, and no other."""
    rows = read_rows()
    assert PAGE.read_text() == "\n".join([*page(rows), ""])
    assert list(rows) == [each.torch_npu for each in front_ends() if each.is_tested]


def test_every_test_passed_and_the_options_are_those_that_are_listed() -> None:
    """A release in which one fails is not called tested."""
    for release, row in read_rows().items():
        known = front_end(release)
        assert known is not None and row.failed == []
        assert set(row.facts["options of npugraph_ex's SuperKernels"]) == set(known.superkernel)
        assert row.versions["torch_npu"] == release
