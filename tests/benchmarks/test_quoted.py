"""Measured numbers in the README and on pages for users come from stored records."""

import re
from pathlib import Path

import pytest
from scipy import stats

from benchmarks.stored import TABLES, read_tables, stored

ROOT = Path(__file__).parents[2]
QUOTES = (
    "three species of iris, [log loss](docs/classifiers.md) | {iris by here, log loss} "
    "| {iris by Gaussian process, scikit-learn, log loss} scikit-learn's Gaussian process, "
    "{iris by logistic regression, log loss} logistic regression |",
    "three wines, log loss | {wine by here, log loss} | {wine by Gaussian process, scikit-learn, log loss} and "
    "{wine by logistic regression, log loss} by the same two |",
    "| {here, seconds} s | {scikit-learn, seconds} s scikit-learn |",
    "after {MNIST, time} of one core | {MNIST, here} % | {MNIST, GPflow} % GPflow |",
    "| {slopes, error}, {slopes, seconds} s | {slopes by NUTS, error}, {slopes by NUTS, seconds} s NUTS |",
    "| {lifetimes, error}, {lifetimes, seconds} s | {lifetimes by NUTS, error}, {lifetimes by NUTS, seconds} s NUTS |",
    "the same to {mixed models, difference} by lme4, glmmTMB and ordinal |",
    "the same to {smooth terms, difference} by mgcv |",
    "a fit of iris takes {iris by Gaussian process, scikit-learn, processor} s there, and "
    "{iris by here, processor} s here.",
)
"""Sentences and table cells of the README, with names of stored numbers."""
SETTINGS = {
    "README": "3.12 2.0",
    "checks": "0.1 0.5 0.7 0.9",
    "howto/bambi": "0.21",
    "howto/choices": "0.5 0.8 1.2",
    "howto/maps": "1.5 0.05 0.5 0.95",
    "howto/priors": "0.55 2.5 1.9 0.31 9.8 0.67 90 %",
    "howto/series": "0.9",
    "howto/two_classes": "1.6",
    "installation": "3.12 6.4",
    "leave_one_out": "0.3",
    "mathematics": "3.2 3.2.3 5.5 5.5.1",
    "methods": "3.2 3.3 4.3",
    "options": "0.03 0.1 0.5 0.7 0.9 512 MB",
    "trust": "0.03 0.3 0.7 1.01",
    "tutorial": "0.75 0.95 1.01",
    "versions": "1.0 3.12 3.13 6.4",
}
"""Numbers that are not measurements: versions, sections of papers, thresholds, defaults, values of simulated data."""
MEASURED = re.compile(
    r"(?<![\w.])(?:\d[\d  ]*(?:\.\d+)*(?:e[-−]?\d+)? ?(?:[mµ]?s|seconds?|minutes?|hours?|[kMG]B|%)(?!\w)|\d+(?:\.\d+)+"
    r"|\d+e[-−]\d+)|\b(?:two|three|four|five|six|seven|ten|fifteen|twenty|thirty|forty|few|some) "
    r"(?:milli)?(?:seconds|minutes|hours)\b"
    r"|\b(?:half an?|a) (?:minute|hour)\b"
)


def numbers() -> dict[str, str]:
    """Return stored numbers by the names in quotes."""
    found = {}
    for paper, name in stored(TABLES):
        if paper == "quoted":
            found |= dict(read_tables(paper, name)["tables"]["numbers"]["rows"])
    errors = read_tables("scalable_paper", "gpflow_curve")["tables"]["errors"]
    place = 4
    of = {row[0]: f"{100 * float(row[place]):.1f}" for row in errors["rows"] if row[place]}
    mnist = {"time": errors["columns"][place], "here": of["SEP, rate 0.01"], "GPflow": of["GPflow, rate 0.01"]}
    return found | {f"MNIST, {name}": number for name, number in mnist.items()}


def quotes() -> list[str]:
    return [quote.format_map(numbers()) for quote in QUOTES]


def test_readme_quotes_stored_numbers():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert [quote for quote in quotes() if quote not in text] == []


@pytest.mark.parametrize("name", [name for paper, name in stored(TABLES) if paper == "quoted"])
def test_each_quoted_number_names_its_command_and_commits(name):
    record = read_tables("quoted", name)
    own = record["tables"]["numbers"]
    commits = own.get("commits", own.get("printed"))
    assert commits
    assert all(re.fullmatch("[0-9a-f]{12}", commit) for commit in commits)
    assert re.match(r"python (-m benchmarks\.|benchmarks/)\w+", record["command"])
    assert "cores" in record["machine"]
    assert "printed" in own or record["seconds"] > 0


def listed(page: str) -> set[str]:
    tables = re.findall(r"```{toctree}\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    return set(" ".join(tables).split())


def pages_for_users() -> dict[str, str]:
    """Texts of the README and of pages for users, without code and links."""
    docs = ROOT / "docs"
    paths = {path.relative_to(docs).with_suffix("").as_posix(): path for path in docs.rglob("*.md")}
    hidden = {"changelog", "architecture", *listed("evidence.md")}
    chosen = {name: path for name, path in paths.items() if name not in hidden and name[0] != "_"}
    chosen = {name: path for name, path in chosen.items() if not name.startswith("generated/")}
    return {name: bare(path.read_text()) for name, path in {"README": ROOT / "README.md", **chosen}.items()}


def bare(text: str) -> str:
    text = " ".join(re.sub(r"\A---\n.*?\n---\n|^(`{3,}).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE).split())
    for quote in quotes():
        text = text.replace(quote, "")
    return re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)", " X ", text)


def test_pages_for_users_have_no_measured_numbers_of_their_own():
    found = {
        name: sorted({number.strip() for number in MEASURED.findall(text)} - allowed(name))
        for name, text in pages_for_users().items()
    }
    assert len(found) > 50
    assert {name: measured for name, measured in found.items() if measured} == {}


def allowed(name: str) -> set[str]:
    """Return the settings that a page may print: numbers, each with its unit."""
    return set(re.findall(r"[\d.]+(?: (?:%|MB))?", SETTINGS.get(name, "")))


@pytest.mark.parametrize(
    "text", ["takes 70 s", "12 % wrong", "within 0.04", "the same to 4e-6", "some ten seconds", "a minute", "512 MB"]
)
def test_pattern_finds_measured_numbers_in_text(text):
    assert MEASURED.search(text)


def test_intervals_in_the_table_of_priors_are_exact():
    page = (ROOT / "docs" / "howto" / "priors.md").read_text()
    priors = {
        '`pm.InverseGamma("ls", 5, 5)`': stats.invgamma(5, scale=5).interval(0.9),
        '`pm.InverseGamma("ls", 3, 12)`': stats.invgamma(3, scale=12).interval(0.9),
        '`pm.HalfNormal("eta", 5)`': stats.halfnorm(scale=5).interval(0.9),
        '`pm.HalfStudentT("eta", nu=4, sigma=10)`': 10 * stats.t(4).ppf([0.525, 0.975]),
    }
    for code, (low, high) in priors.items():
        assert f"| {code} | {low:.2g} to {high:.2g} |" in page
