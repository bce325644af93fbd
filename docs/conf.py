"""Sphinx configuration. Nothing is fetched while building."""

from importlib.metadata import version as installed_version

project = "pymc_gpep"
author = "The pymc_gpep developers"
project_copyright = author
release = version = installed_version("pymc-gpep")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 2

# The public names are those of `__all__`, wherever they are defined.
autosummary_ignore_module_all = False
autosummary_imported_members = True
# What a class inherits from PyMC is documented there.
autodoc_inherit_docstrings = False
autodoc_typehints = "none"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "pymc_gpep"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
html_show_sourcelink = False
