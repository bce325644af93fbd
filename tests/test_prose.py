"""Docstrings and messages follow the rules of plain English in CONTRIBUTING, as far as a program can tell.

Sentences that break a rule are counted. A ceiling may fall, and never rises: a change that adds such a sentence has to
mend another one.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pymc_gpep"
MOST_WORDS = 25
RULES = {
    "begins without a noun": lambda sentence: re.match(
        r"(Of|What|Who|Those|That of|These of)\b(?! is\b| are\b)", sentence
    ),
    "none as a predicate": lambda sentence: re.search(r"\b(is|are|was|were|be) none\b", sentence),
    "a headless who": lambda sentence: re.match(r"(Who|Whoever)\b", sentence),
    "too many words": lambda sentence: len(sentence.split()) > MOST_WORDS,
}
CEILINGS = {
    ("docstrings", "begins without a noun"): 443,
    ("docstrings", "none as a predicate"): 42,
    ("docstrings", "a headless who"): 0,
    ("docstrings", "too many words"): 401,
    ("messages", "begins without a noun"): 0,
    ("messages", "none as a predicate"): 0,
    ("messages", "a headless who"): 0,
    ("messages", "too many words"): 0,
}


@cache
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]


def docstrings() -> Iterator[str]:
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    for tree in trees():
        yield from (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))


def messages() -> Iterator[str]:
    """Texts of errors that are raised and of warnings, with X in place of what is put in."""
    for tree in trees():
        for node in ast.walk(tree):
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


def sentences(paragraphs: str) -> Iterator[str]:
    """Sentences without code: formulas, tables and examples are no sentences."""
    for paragraph in re.split(
        r"\n\s*\n|^.*\n\s*-{3,}\s*$|^\s*>>>.*$|^[\w*, ]+ : .*$|^[A-Z]\w*(?:Error|Warning).*$", paragraphs, flags=re.M
    ):
        flat = re.sub(r"`[^`]*`|\([^()]*\)", "X", " ".join(paragraph.split()))
        yield from (each for each in re.split(r"(?<=[.!?])\s+(?=[A-Z])", flat) if len(each.split()) > 2)


@cache
def sentences_of(where: str) -> list[str]:
    read = {"docstrings": docstrings, "messages": messages}[where]
    return [sentence for each in read() for sentence in sentences(each)]


@pytest.mark.parametrize(("where", "rule"), CEILINGS, ids=[" ".join(key) for key in CEILINGS])
def test_no_more_sentences_break_a_rule(where, rule):
    broken = [sentence for sentence in sentences_of(where) if RULES[rule](sentence)]
    assert len(broken) <= CEILINGS[where, rule], broken[-10:]
