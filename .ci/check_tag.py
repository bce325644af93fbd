"""Refuse a tag whose version differs from the package's, or has no section in the changelog."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def faults(tag: str, root: Path = ROOT) -> list[str]:
    """Return the faults of a tag that forbid a release."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    found = []
    if tag != f"v{version}":
        found.append(f"The tag is {tag}, but pyproject.toml has the version {version}.")
    if re.search(r"dev|rc|a\d|b\d", version):
        found.append(f"{version} is not the version of a release.")
    if not re.search(rf"^## {re.escape(version)} ", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE):
        found.append(f"CHANGELOG.md has no section '## {version} (date)'.")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(faults(sys.argv[1])))
