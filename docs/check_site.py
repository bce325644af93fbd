"""Check the built site: links, anchors, pictures, widths, and the search.

    python docs/check_site.py docs/_build/html

Links, pictures, style sheet, widths in pages and the search index are read from files. The search of the site also runs
in node, and the pages in a headless Chromium, where these are installed. A part that cannot run is named as skipped.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from urllib.parse import quote, unquote, urlsplit

SEARCHED = json.loads(Path(__file__).with_name("searched.json").read_text())
BROWSERS = "chromium", "chromium-browser", "google-chrome", "chrome"
SCREENS = {"phone": 390, "tablet": 768, "desktop": 1440}
BUILT_BY_THEME = {"genindex.html", "search.html", "py-modindex.html"}


class Page(HTMLParser):
    """Links, pictures and anchor names of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.anchors = {"", "top"}
        self.styles: list[str] = []
        self.widths: list[int] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        self.widths += map(int, re.findall(r"(?<!-)width: *(\d+)px", values.get("style", "")))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "img" and "src" in values:
            self.pictures.append(values["src"])
        if tag == "link" and "stylesheet" in values.get("rel", ""):
            self.styles.append(values.get("href", ""))


@cache
def read(path: Path) -> Page:
    """Parse the page of a file, once for all checks."""
    return Page(path)


def checked_pages(site: Path) -> Iterator[tuple[Path, Page]]:
    for path in sorted(site.rglob("*.html")):
        if "_static" not in path.relative_to(site).parts:
            yield path, read(path)


def broken_links(site: Path) -> list[str]:
    """Links within the site whose page or anchor does not exist."""
    found = []
    for path, page in checked_pages(site):
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link in {"", "#"}:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{path.relative_to(site)}: {link} is not a page")
            elif target.suffix == ".html" and unquote(parts.fragment) not in read(target).anchors:
                found.append(f"{path.relative_to(site)}: {link} is not an anchor")
    return found


def missing_pictures(site: Path) -> list[str]:
    found = []
    for path, page in checked_pages(site):
        for source in page.pictures:
            if not urlsplit(source).scheme:
                picture = path.parent / unquote(urlsplit(source).path)
                if not picture.is_file() or picture.stat().st_size == 0:
                    found.append(f"{path.relative_to(site)}: picture {source} is missing")
    gallery = read(site / "pictures.html")
    if len(gallery.pictures) < 20:
        found.append(f"pictures.html: the gallery has {len(gallery.pictures)} pictures, and 20 at least are expected")
    return found


def wide_parts(site: Path) -> list[str]:
    """Pages whose code does not wrap, and elements that are wider than a phone."""
    style = (site / "_static" / "site.css").read_text()
    if not re.search(r"highlight pre \{[^}]*white-space: pre-wrap", style):
        return ["_static/site.css does not wrap lines of code"]
    found = []
    for path, page in checked_pages(site):
        if not any("site.css" in style for style in page.styles):
            found.append(f"{path.relative_to(site)} does not use site.css")
        found += [f"{path.relative_to(site)} has a part of {w} pixels" for w in page.widths if w > SCREENS["phone"]]
    return found


def pages_that_the_index_misses(site: Path) -> list[str]:
    """Search terms whose page is not first among the main entries of the search index.

    The search of the site scores such an entry by its share of the word, 50 to 100, and all other matches below 50.
    """
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    first = {}
    for word in SEARCHED:
        scores = [
            (round(100 * len(word) / len(entry)), index["docnames"][place])
            for entry, places in index["indexentries"].items()
            if word.lower() in entry and 2 * len(word) >= len(entry)
            for place, _, main in places
            if main
        ]
        first[word] = max(scores, default=(0, "nothing"))[1]
    return differences(first)


NODE = """
const fs = require("fs"), vm = require("vm"), site = process.argv[2];
const element = () => new Proxy(function () {}, {
  get: (target, name) => name === Symbol.toPrimitive ? () => "" : name === "content_root" ? "./"
    : name.endsWith("Child") ? null : element(),
  set: () => true, apply: () => element(),
});
const words = JSON.parse(process.argv[3]);
const context = vm.createContext({
  document: element(), console, URLSearchParams, SPHINX_HIGHLIGHT_ENABLED: false, _ready: () => {}, _: (text) => text,
});
vm.runInContext("window = globalThis", context);
for (const name of ["_static/documentation_options.js", "_static/language_data.js", "_static/searchtools.js",
                    "searchindex.js"])
  vm.runInContext(fs.readFileSync(site + "/" + name, "utf8"), context);
context.words = words;
const code = "words.map((word) => Search._performSearch(...Search._parseQuery(word)).pop()[0])";
console.log(JSON.stringify(vm.runInContext(code, context)));
"""


def pages_that_searches_miss(site: Path, node: str) -> list[str]:
    """Search terms whose page is not the first result of the site's search."""
    with TemporaryDirectory() as folder:
        script = Path(folder) / "search.js"
        script.write_text(NODE)
        command = [node, script, str(site), json.dumps(list(SEARCHED))]
        first = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    return differences(dict(zip(SEARCHED, first, strict=True)))


def differences(first: dict[str, str]) -> list[str]:
    return [f"{word!r} finds {first[word]}, not {page}" for word, page in SEARCHED.items() if first[word] != page]


@contextmanager
def served(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Do not print a line for each file."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


MEASURE = """<script>
const tasks = /*tasks*/, frame = document.createElement("iframe"), found = [];
frame.height = 2000;
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const first = () => frame.contentDocument.querySelector("#search-results li a");
onload = async () => {
  document.body.append(frame);
  for (const [address, widths] of tasks) {
    await new Promise((done) => { frame.onload = done; frame.src = address; });
    for (let i = 0; !widths.length && !first() && i < 100; i++) await wait(100);
    found.push(widths.length ? widths.map((width) => {
      frame.width = width;
      return frame.contentDocument.documentElement.scrollWidth;
    }) : first()?.pathname);
  }
  document.title = JSON.stringify(found);
};
</script>"""


def faults_in_browser(site: Path, browser: str) -> list[str]:
    """Search terms that miss their page, and pages that are wider than a screen, in a headless browser."""
    names = [path.relative_to(site).as_posix() for path, _ in checked_pages(site)]
    names = [name for name in names if name not in BUILT_BY_THEME and not name.startswith("generated/")]
    tasks = [(f"/search.html?q={quote(word)}", []) for word in SEARCHED]
    tasks += [(f"/{name}", list(SCREENS.values())) for name in names]
    measure = site / "_measure.html"
    measure.write_text(MEASURE.replace("/*tasks*/", json.dumps(tasks)))
    try:
        with served(site) as root:
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=900000", "--dump-dom"]
            command = [browser, *options, f"{root}/_measure.html"]
            dom = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout
    finally:
        measure.unlink()
    title = re.search(r"<title>(.*?)</title>", dom)
    if title is None:
        return ["the browser did not load all pages"]
    first, widths = (
        json.loads(unescape(title[1]))[part] for part in (slice(len(SEARCHED)), slice(len(SEARCHED), None))
    )
    pages = [str(path).strip("/").removesuffix(".html") for path in first]
    found = differences(dict(zip(SEARCHED, pages, strict=True)))
    for name, each in zip(names, widths, strict=True):
        for (screen, width), wide in zip(SCREENS.items(), each, strict=True):
            if wide > width:
                found.append(f"{name} is {wide} wide on a {screen} of {width} pixels")
    return found


def main(site: Path) -> int:
    if not (site / "index.html").is_file():
        print(f"There is no built site in {site}: run `make docs` first.")
        return 1
    checks = {
        "links": broken_links,
        "pictures": missing_pictures,
        "widths": wide_parts,
        "search index": pages_that_the_index_misses,
    }
    node = shutil.which("node") or shutil.which("nodejs")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if node:
        checks["search"] = partial(pages_that_searches_miss, node=node)
    if browser:
        checks["browser"] = partial(faults_in_browser, browser=browser)
    faults = {name: check(site) for name, check in checks.items()}
    for name, found in faults.items():
        print(f"{name}: {len(found) or 'no'} fault{'' if len(found) == 1 else 's'}", *found, sep="\n  ")
    for name, program in (("search", node), ("browser", browser)):
        if not program:
            needed = "node" if name == "search" else " or ".join(BROWSERS[:3])
            print(f"*** SKIPPED: {name}. Install {needed} to run this check. ***")
    return int(any(faults.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/_build/html").resolve()))
