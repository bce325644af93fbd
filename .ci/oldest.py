"""Print the oldest releases that pyproject.toml allows, as constraints for pip: dependencies and named extras.

Only dependencies with a floor are printed. Their own dependencies are as new as they allow.
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
