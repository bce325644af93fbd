"""Print the oldest releases that pyproject.toml allows, as pip's constraints: of the dependencies, and of extras named.

Only those with a floor are printed. What they depend on in turn is as new as they allow.
"""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
lines = [*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name])]
for requirement in map(Requirement, lines):
    for specifier in requirement.specifier:
        if specifier.operator == ">=":
            print(f"{requirement.name}=={specifier.version}")
