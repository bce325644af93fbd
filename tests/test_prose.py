"""Docstrings, messages and pages follow the rules of plain English in CONTRIBUTING, where a program can check them.

Pages for new users have shorter sentences on average.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, DOCS = ROOT / "pymc_gpep", ROOT / "docs"
MOST_WORDS = 25
RULES = {
    "begins without a noun": lambda sentence: re.match(
        r"(Of|What|Who|Those|That of|These of)\b(?! is\b| are\b)", sentence
    ),
    "none as a predicate": lambda sentence: re.search(r"\b(is|are|was|were|be) none\b", sentence),
    "a headless who": lambda sentence: re.match(r"(Who|Whoever)\b", sentence),
    "too many words": lambda sentence: len(sentence.split()) > MOST_WORDS,
}


@cache
def nodes() -> list[ast.AST]:
    """Return all nodes of the code of the package."""
    return [node for path in sorted(PACKAGE.rglob("*.py")) for node in ast.walk(ast.parse(path.read_text()))]


def docstrings() -> Iterator[str]:
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    yield from (ast.get_docstring(node) or "" for node in nodes() if isinstance(node, kinds))


def messages() -> Iterator[str]:
    """Texts of raised errors and of warnings, with X in place of formatted values."""
    for node in nodes():
        called = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(called, ast.Call) or not called.args:
            continue
        if isinstance(node, ast.Raise) or getattr(node.func, "id", "") == "warn":
            yield text(called.args[0])


def text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text(each) if isinstance(each, ast.Constant) else "X" for each in node.values)
    if isinstance(node, ast.BinOp):
        return text(node.left) + text(node.right)
    return "X"


def pages() -> Iterator[str]:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        if not {"_build", "generated"} & set(path.parts):
            yield prose(path.read_text())


def prose(page: str) -> str:
    """A page without code, formulas, tables, titles and link targets."""
    page = re.sub(r"\A---\n.*?\n---\n|^(```+).*?^\1\s*$|^\$\$.*?\$\$\s*$", "\n\n", page, flags=re.S | re.M)
    page = re.sub(r"^[|#].*$", "\n", page, flags=re.M)
    page = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", page, flags=re.M)
    return re.sub(r"!?\[([^]]*)\]\([^)]*\)|^>|\*\*", r"\1", page, flags=re.M)


def listed(page: str) -> list[Path]:
    """A page and the pages that its tables of contents name."""
    path = DOCS / page
    tables = re.findall(r"```{toctree}\n(.*?)```", path.read_text(), flags=re.S)
    named = [path.parent / f"{name}.md" for name in " ".join(tables).split()]
    return [path, *filter(Path.exists, named)]


def sentences(paragraphs: str) -> Iterator[str]:
    """Sentences without code. Formulas, tables, examples and lists of modules are skipped."""
    for paragraph in re.split(
        r"\n\s*\n|^.*\n\s*-{3,}\s*$|^\s*>>>.*$|^[\w*, ]+ : .*$|^[a-z_0-9]+: .*$|^[A-Z]\w*(?:Error|Warning).*$",
        paragraphs,
        flags=re.M,
    ):
        flat = re.sub(r"`[^`]*`|\([^()]*\)", "X", " ".join(paragraph.split()))
        yield from (each for each in re.split(r"(?<=[.!?])\s+(?=[A-Z])", flat) if len(each.split()) > 2)


def comments() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        with tokenize.open(path) as lines:
            tokens = [each.string for each in tokenize.generate_tokens(lines.readline) if each.type == tokenize.COMMENT]
        yield from (each.lstrip("# ") for each in tokens if not re.match(r"#\s*(noqa|type:|pragma)", each))


def names_of_tests() -> Iterator[str]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        names = re.findall(r"^ *def (test_\w+)", path.read_text(), flags=re.MULTILINE)
        yield from (name.replace("_", " ") for name in names)


@cache
def sentences_of(where: str) -> list[str]:
    if where == "comments":
        return list(comments())
    if where == "names of tests":
        return list(names_of_tests())
    read = {"docstrings": docstrings, "messages": messages, "pages": pages}[where]
    return [sentence for each in read() for sentence in sentences(each)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("where", ["docstrings", "messages", "pages"])
def test_no_sentence_breaks_a_rule(where, rule):
    assert [sentence for sentence in sentences_of(where) if RULES[rule](sentence)] == []


HARD = re.compile(
    r"\b(what|whatever|whoever|those|others|ones|tells?|told|knows?|known|knew|wants?|wanted)\b"
    r"|\b(is|are|was|were) no\b|\b(that|the) one\b|\bone (of|that)\b",
    flags=re.IGNORECASE,
)
"""Words that often replace a noun, and verbs of people that are used for things."""
MOST_HARD = {"docstrings": 16, "messages": 1, "comments": 0, "names of tests": 0}
"""Largest number of sentences with such words. Lower it after sentences are rewritten."""
SLACK = 30


@pytest.mark.parametrize("where", MOST_HARD)
def test_sentences_with_hard_words_become_fewer(where):
    count = sum(bool(HARD.search(sentence)) for sentence in sentences_of(where))
    assert MOST_HARD[where] - SLACK <= count <= MOST_HARD[where]


FIRST_READ = [ROOT / "README.md", DOCS / "index.md", *listed("start.md"), *listed("howto/index.md")]


@pytest.mark.parametrize("path", FIRST_READ, ids=lambda path: path.stem)
def test_pages_that_are_read_first_have_short_sentences(path):
    lengths = [len(sentence.split()) for sentence in sentences(prose(path.read_text()))]
    assert sum(lengths) <= 16 * len(lengths)


def test_how_to_pages_are_short():
    words = {path.stem: len(path.read_text().split()) for path in listed("howto/index.md")}
    assert len(words) > 20
    assert {name: count for name, count in words.items() if count > 900} == {}
