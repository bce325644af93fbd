"""Sphinx configuration. The build downloads nothing, and runs pages with code."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import kernels  # noqa: E402  (it stands beside this file, where Sphinx does not look)

project = "pymc_gpep"
author = "The pymc_gpep developers"
project_copyright = author
release = version = installed_version("pymc-gpep")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "shown_cells",
]
exclude_patterns = ["_build", "conf.py", "kernels.py", "shown_cells.py", "check_site.py"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 2

# Sphinx runs a page when it reads it. An exception stops the build.
nb_execution_mode = "force"
nb_kernel_rgx_aliases = {"python3": "forked"}  # see kernels.py
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_render_markdown_format = "myst"  # tables of records (benchmarks/stored.py)
nb_output_stderr = "remove"  # log messages of PyMC during sampling
nb_custom_formats = {".py": "kernels.read_script"}

# The examples are scripts in cells, and pages of this site.
shutil.copytree(HERE.parent / "examples", HERE / "generated" / "examples", dirs_exist_ok=True)

# The public names are in `__all__`, wherever they are defined.
autosummary_ignore_module_all = False
autosummary_imported_members = True
# Members inherited from PyMC are documented by PyMC.
autodoc_inherit_docstrings = False
autodoc_typehints = "none"
numpydoc_show_class_members = False

html_theme = "pymc_sphinx_theme"
html_title = "pymc_gpep"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# PyMC's theme without visitor statistics, links to PyMC's accounts, and PyMC's search.
html_theme_options = {
    "google_analytics_id": "",
    "header_links_before_dropdown": 7,
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "use_search_override": False,
}
html_show_sourcelink = False


def skip_metadata_routing(app, what, name, obj, skip, options):
    """Skip members that scikit-learn adds to its estimators, since they refer to scikit-learn's pages."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def hide_constructor_of_fit(app, what, name, obj, options, signature, return_annotation):
    """Hide the arguments of `Fit`, which only `pm.fit` makes."""
    return ("", None) if name == "pymc_gpep.Fit" else None


def start_kernels(app):
    """Start the process that kernels are forked from.

    It ends when its standard input closes, at the latest with Sphinx.
    """
    folder = TemporaryDirectory()
    specification = Path(folder.name) / "kernels" / "forked" / "kernel.json"
    specification.parent.mkdir(parents=True)
    specification.write_text(json.dumps(kernels.specification()))
    os.environ["JUPYTER_PATH"] = folder.name
    os.environ[kernels.ENVIRONMENT] = str(Path(folder.name) / "socket")
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a process with threads must not fork
    server = subprocess.Popen(
        [sys.executable, kernels.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=alone
    )
    server.stdout.readline()

    def stop(app, exception):
        server.communicate()
        folder.cleanup()

    app.connect("build-finished", stop)


def setup(app):
    app.connect("builder-inited", start_kernels)
    app.connect("autodoc-skip-member", skip_metadata_routing)
    app.connect("autodoc-process-signature", hide_constructor_of_fit)
