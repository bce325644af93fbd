"""The checks of the built site find faults that are put into a small one."""

import importlib.util
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
    return tmp_path


def add(site, text):
    page = site / "index.html"
    page.write_text(page.read_text() + text)


def test_site_without_faults_passes(site):
    assert check_site.broken_links(site) == []
    assert check_site.missing_pictures(site) == []
    assert check_site.code_that_is_cut_off(site) == []


@pytest.mark.parametrize("link", ["nowhere.html", "pictures.html#elsewhere", "#elsewhere"])
def test_broken_link_is_found(site, link):
    add(site, f'<a href="{link}">link</a><a href="https://www.pymc.io">external</a>')
    (fault,) = check_site.broken_links(site)
    assert link in fault


def test_missing_picture_is_found(site):
    add(site, '<img src="lost.png">')
    (fault,) = check_site.missing_pictures(site)
    assert "lost.png" in fault


def test_gallery_with_few_pictures_is_found(site):
    page = site / "pictures.html"
    page.write_text(page.read_text().replace('<img src="picture.png">', "", 1))
    assert "19 pictures" in check_site.missing_pictures(site)[0]


def test_page_without_style_sheet_is_found(site):
    (site / "plain.html").write_text("<pre>code</pre>")
    assert check_site.code_that_is_cut_off(site) == ["plain.html does not use site.css"]


def test_search_with_another_first_result_is_found():
    first = dict(check_site.SEARCHED) | {"GAM": "changelog"}
    assert check_site.differences(first) == ["'GAM' finds changelog, not howto/from_lme4_mgcv"]


BROWSER = """
import sys
from urllib.parse import parse_qs, urlsplit

address = urlsplit(sys.argv[-1])
pages = {pages}
if address.query:
    page = pages.get(parse_qs(address.query)["q"][0], "index")
    print(f'<div id="search-results"><ul><li><a href="{{page}}.html?x">first</a></li></ul></div>')
else:
    print("<title>768</title>")
"""


def test_browser_reports_first_results_and_widths(site, tmp_path_factory):
    """A script in place of a browser misses one search, and reports that each page is 768 pixels wide."""
    browser = tmp_path_factory.mktemp("browser") / "browser"
    pages = {word: page for word, page in check_site.SEARCHED.items() if word != "GAM"}
    browser.write_text(f"#!{sys.executable}" + BROWSER.format(pages=pages))
    browser.chmod(0o755)
    search, *widths = check_site.faults_in_browser(site, os.fspath(browser))
    assert search == "'GAM' finds index, not howto/from_lme4_mgcv"
    assert [fault.split()[0] for fault in widths] == ["index.html", "pictures.html"]
    assert all("phone" in fault for fault in widths)
    assert not (site / "_measure.html").exists()


def test_main_names_skipped_checks(site, monkeypatch, capsys):
    monkeypatch.setattr(check_site.shutil, "which", lambda name: None)
    assert check_site.main(site) == 0
    printed = capsys.readouterr().out
    assert "SKIPPED: search" in printed
    assert "SKIPPED: browser" in printed
