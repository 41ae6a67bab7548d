"""The documentation: links work, every page is reachable from the index, and commands and code can be run."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.markdown import Markdown

from sktune.cli.app import load

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
INDEX = ROOT / "docs" / "index.md"
README_IN_CHINESE = ROOT / "README.zh-CN.md"
CHINESE = ROOT / "docs" / "zh"
TRANSLATIONS = {
    README_IN_CHINESE: README,
    **{page: ROOT / "docs" / page.relative_to(CHINESE) for page in sorted(CHINESE.rglob("*.md"))},
}
"""The original of each Chinese page."""
PAGES = [README, README_IN_CHINESE, *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
MAX_LINES_OF_README = 120
COMMAND: Any = load()

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FILE = re.compile(r"`((?:sktune|benchmarks|tests|examples|search_spaces|docs)/[\w./-]+)`")
SHELL_OPERATORS = {"&&", ";", "|", "(", ")", "&", ">", "<"}


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = (CODE.sub(lambda code: code.group()[1:-1], heading) for heading in HEADING.findall(prose(page)))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)


def levels(page: Path) -> list[int]:
    """Return the level of each heading of a page, in order."""
    return [len(marks) for marks in re.findall(r"^(#{1,6}) ", prose(page), re.MULTILINE)]


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each link of a page to a local file."""
    for link in LINK.findall(CODE.sub("", prose(page))):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_work(page: Path) -> None:
    """The file or folder exists, and has the heading."""
    for path, anchor in links(page):
        assert path.exists(), f"{path.relative_to(ROOT)} does not exist"
        assert not anchor or anchor in anchors(path), f"{path.relative_to(ROOT)} has no heading #{anchor}"


def test_every_page_is_reachable_from_the_index() -> None:
    """And the index from the README."""
    assert INDEX in {path for path, _ in links(README)}
    reached, new = set[Path](), [INDEX]
    while new:
        page = new.pop()
        reached.add(page)
        new += [path for path, _ in links(page) if path.suffix == ".md" and path.is_file() and path not in reached]
    assert not set(PAGES) - reached - {README, README_IN_CHINESE}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_are_named_exist(page: Path) -> None:
    """Pages are updated when a module moves."""
    missing = {name for name in FILE.findall(prose(page)) if not (ROOT / name).exists()}
    assert not missing


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each sktune command in a page's shell blocks."""
    for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "bash":
            continue
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
            lexer.whitespace_split = True
            yield from of_sktune(list(lexer))


def of_sktune(words: list[str]) -> Iterator[list[str]]:
    """Yield the arguments of ``sktune`` in each command of a line."""
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in SHELL_OPERATORS:
            command.append(word)
            continue
        while command and re.match(r"[A-Z_]+=", command[0]):
            command = command[1:]
        if command and command[0].rpartition("/")[2] == "sktune":
            yield command[1:]
        command = []


def check_command(words: list[str], *, whole: bool = True) -> None:
    """Parse a command without running it.

    Args:
        words: after ``sktune``.
        whole: whether the command is complete; a sentence may leave out required arguments.

    Raises:
        Exception: of the parser: an unknown command or option, an option without its value.
    """
    command = COMMAND
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    assert not getattr(command, "commands", {}) or words[0].startswith("--"), f"no command {words[0]!r}"
    context = command.context_class(command, info_name="sktune")
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    assert not rest or not whole, f"{words} has too many words: {rest}"
    missing = whole and [param.name for param in command.params if param.required and not values.get(param.name)]
    assert not missing, f"{words} lacks {missing}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_are_valid(page: Path) -> None:
    """No option is misspelt or removed, and no required one is missing."""
    for words in commands(page):
        check_command(words)
    for code in CODE.findall(prose(page)):
        if re.match(r"`sktune [a-z]+", code):
            check_command(code.strip("`").split()[1:], whole=False)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_imported_names_exist(page: Path) -> None:
    """In every block of Python."""
    for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)) if language == "python" else ():
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("sktune."):
                for alias in node.names:
                    exec(f"from {node.module} import {alias.name}")


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_translations_do_not_drift(page: Path) -> None:
    """A Chinese page has the blocks of code of its original, in order, as many headings, and a link each way."""
    original = TRANSLATIONS[page]
    text, source = (path.read_text(encoding="utf-8") for path in (page, original))
    assert FENCE.findall(text) == FENCE.findall(source)
    assert levels(page) == levels(original)
    assert original.resolve() in {path for path, _ in links(page)}
    assert page.resolve() in {path for path, _ in links(original)}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_emphasis_is_rendered(page: Path) -> None:
    """No asterisks are left in the text, as CommonMark leaves those between a letter and a full-width stop."""
    inline = [token for token in Markdown(page.read_text(encoding="utf-8")).parsed if token.type == "inline"]
    texts = [child.content for token in inline for child in token.children or () if child.type == "text"]
    assert not [text for text in texts if "**" in text]


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_chinese_pages_say_which_links_are_in_english(page: Path) -> None:
    """Each link to a page that has no translation is followed by a note; no other link is."""
    for match in re.finditer(r"\]\(([^)\s:]+\.md)[^)]*\)(.英文.)?", prose(page)):
        path = (page.parent / match[1]).resolve()
        assert bool(match[2]) == (path not in {*TRANSLATIONS, TRANSLATIONS[page]}), match.group()


def test_readme_is_short() -> None:
    """Short enough to be read completely."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_LINES_OF_README


def blocks_of_extending() -> list[Any]:
    """Return the page's blocks of Python, each with its heading as its ID."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return [
        pytest.param(block, id=section.partition("\n")[0])
        for section in sections
        for language, block in FENCE.findall(section)
        if language == "python"
    ]


MAX_LINES_OF_AN_EXTENSION = 20


@pytest.mark.parametrize("block", blocks_of_extending())
def test_extensions_run_unchanged(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a short, complete module that shows what it does by an assertion."""
    monkeypatch.chdir(tmp_path)
    assert len(block.splitlines()) < MAX_LINES_OF_AN_EXTENSION
    exec(compile(block, "docs/extending.md", "exec"), {"__name__": "extension"})
