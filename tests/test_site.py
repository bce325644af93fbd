"""The checks of the built site find faults in a small site."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
specification = importlib.util.spec_from_file_location("check_site", ROOT / "docs" / "check_site.py")
check_site = importlib.util.module_from_spec(specification)
specification.loader.exec_module(check_site)


@pytest.fixture
def site(tmp_path):
    """Return a site without faults: two pages, a picture and the style sheet."""
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "site.css").write_text("div.highlight pre { white-space: pre-wrap; }")
    (tmp_path / "picture.png").write_bytes(b"png")
    style = '<link rel="stylesheet" href="_static/site.css">'
    pictures = '<img src="picture.png">' * 20
    (tmp_path / "index.html").write_text(f'{style}<a href="pictures.html#there">link</a>')
    (tmp_path / "pictures.html").write_text(f'{style}<p id="there">{pictures}</p>')
    pages = ["changelog", *sorted(set(check_site.SEARCHED.values()))]
    entries = {word.lower(): [[pages.index(page), "", True]] for word, page in check_site.SEARCHED.items()}
    write_index(tmp_path, {"docnames": pages, "indexentries": entries})
    return tmp_path


def write_index(site, index):
    (site / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")


def add(site, text):
    page = site / "index.html"
    page.write_text(page.read_text() + text)


def test_website_without_faults_passes(site):
    assert check_site.broken_links(site) == []
    assert check_site.missing_pictures(site) == []
    assert check_site.wide_parts(site) == []
    assert check_site.pages_that_the_index_misses(site) == []


@pytest.mark.parametrize("link", ["nowhere.html", "pictures.html#elsewhere", "#elsewhere"])
def test_broken_link_is_reported(site, link):
    add(site, f'<a href="{link}">link</a><a href="https://www.pymc.io">external</a>')
    (fault,) = check_site.broken_links(site)
    assert link in fault


def test_missing_picture_is_reported(site):
    add(site, '<img src="lost.png">')
    (fault,) = check_site.missing_pictures(site)
    assert "lost.png" in fault


def test_gallery_with_few_pictures_is_reported(site):
    page = site / "pictures.html"
    page.write_text(page.read_text().replace('<img src="picture.png">', "", 1))
    assert "19 pictures" in check_site.missing_pictures(site)[0]


def test_page_without_style_sheet_is_reported(site):
    (site / "plain.html").write_text("<pre>code</pre>")
    assert check_site.wide_parts(site) == ["plain.html does not use site.css"]


def test_element_wider_than_a_phone_is_reported(site):
    add(site, '<p style="max-width: 900px"><table style="width: 500px">')
    assert check_site.wide_parts(site) == ["index.html has a part of 500 pixels"]


def test_search_term_with_another_first_result_is_reported():
    first = dict(check_site.SEARCHED) | {"GAM": "changelog"}
    assert check_site.differences(first) == ["'GAM' finds changelog, not howto/from_lme4_mgcv"]


def test_search_term_that_the_index_misses_is_reported(site):
    index = json.loads((site / "searchindex.js").read_text()[len("Search.setIndex(") : -1])
    del index["indexentries"]["gam"]
    index["indexentries"]["gamma"] = [[0, "", True]]
    write_index(site, index)
    assert check_site.pages_that_the_index_misses(site) == ["'GAM' finds changelog, not howto/from_lme4_mgcv"]


BROWSER = """
import json, re, sys
from urllib.request import urlopen

tasks = json.loads(re.search("tasks = (.*), frame", urlopen(sys.argv[-1]).read().decode())[1])
pages = {pages}
found = [[768] * 3 if widths else next(pages) for address, widths in tasks]
print("<title>" + json.dumps(found) + "</title>")
"""


def test_browser_reports_first_results_and_widths(site, tmp_path_factory):
    """A script replaces the browser. The script misses one search, and reports a width of 768 pixels for each page."""
    browser = tmp_path_factory.mktemp("browser") / "browser"
    pages = [f"/{page if word != 'GAM' else 'index'}.html" for word, page in check_site.SEARCHED.items()]
    browser.write_text(f"#!{sys.executable}" + BROWSER.format(pages=f"iter({pages})"))
    browser.chmod(0o755)
    search, *widths = check_site.faults_in_browser(site, os.fspath(browser))
    assert search == "'GAM' finds index, not howto/from_lme4_mgcv"
    assert [fault.split()[0] for fault in widths] == ["index.html", "pictures.html"]
    assert all("phone" in fault for fault in widths)
    assert not (site / "_measure.html").exists()


def test_main_function_reports_skipped_checks(site, monkeypatch, capsys):
    monkeypatch.setattr(check_site.shutil, "which", lambda name: None)
    assert check_site.main(site) == 0
    printed = capsys.readouterr().out
    assert "SKIPPED: search" in printed
    assert "SKIPPED: browser" in printed
