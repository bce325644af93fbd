"""The directive `shown`: a picture of another page, with the code that drew it.

A page marks the cells by a tag, such as `:tags: [gallery-walk]`. The directive has the page, the name after `gallery-`
and a caption:

    ```{shown} howto/series walk
    Counts over time
    ```

Picture and code are copied from the page when the site is written. Nothing is run again.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.logging import getLogger

MOST_LINES = 10
logger = getLogger(__name__)


class shown(nodes.General, nodes.Element):  # noqa: N801  (docutils names a node in lower case)
    """Placeholder of a picture until all pages are read."""


class Shown(SphinxDirective):
    """A thumbnail with its caption and code, or with `:picture-only:` the thumbnail alone."""

    required_arguments = 2
    has_content = True
    option_spec = {"picture-only": lambda argument: True}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        page, tag = self.arguments
        self.env.note_dependency(self.env.doc2path(page))  # if the page changes, this page changes
        node = shown(page=page, tag=tag, caption=" ".join(self.content), alone="picture-only" in self.options)
        self.set_source_info(node)
        return [node]


def put_in_pictures(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Replace each placeholder by the picture and the code of the page that it names."""
    for node in list(doctree.findall(shown)):
        cells = []
        if node["page"] in app.env.all_docs:
            tree = app.env.get_doctree(node["page"])
            tag = f"tag_gallery-{node['tag']}"
            cells = [cell for cell in tree.findall(nodes.container) if tag in cell["classes"]]
        code = "\n\n".join(block.astext().strip() for cell in cells for block in _sources(cell))
        pictures = [image for cell in cells for image in cell.findall(nodes.image)]
        executed = app.config.nb_execution_mode != "off"
        if not cells or (executed and not pictures):
            logger.warning("no picture has the tag gallery-%s on the page %s", node["tag"], node["page"], location=node)
        if len(code.splitlines()) > MOST_LINES:
            logger.warning("the code of %s has more than %d lines", node["tag"], MOST_LINES, location=node)
        node.replace_self(_thumbnail(app, name, node, cells, pictures, code))


def _sources(cell: nodes.container) -> list[nodes.literal_block]:
    inputs = [part for part in cell.findall(nodes.container) if "cell_input" in part["classes"]]
    return [block for part in inputs for block in part.findall(nodes.literal_block)]


def _thumbnail(
    app: Sphinx,
    name: str,
    node: shown,
    cells: list[nodes.container],
    pictures: list[nodes.image],
    code: str,
) -> nodes.container:
    uri = app.builder.get_relative_uri(name, node["page"])
    section = cells[0].parent if cells else None
    while section is not None and not isinstance(section, nodes.section):
        section = section.parent
    if section is not None and not isinstance(section.parent, nodes.document):
        uri += f"#{section['ids'][0]}"
    item = nodes.container(classes=["thumbnail"])
    for picture in pictures[:1]:
        image = picture.deepcopy()
        image["alt"] = node["caption"]
        item += nodes.reference("", "", image, refuri=uri, internal=True)
    if not node["alone"]:
        item += nodes.paragraph("", "", nodes.reference("", node["caption"], refuri=uri, internal=True))
        item += nodes.raw("", "<details><summary>Code</summary>", format="html")
        item += nodes.literal_block(code, code, language="ipython3")
        item += nodes.raw("", "</details>", format="html")
    return item


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(shown)
    app.add_directive("shown", Shown)
    app.connect("doctree-resolved", put_in_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
