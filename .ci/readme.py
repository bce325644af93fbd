"""Run the code of README.md with an installed package.

Run as `python -I .ci/readme.py`, so that nothing is imported from this checkout.
"""

import re
import sys
from pathlib import Path

import matplotlib

import pymc_gpep

assert Path(sys.prefix) in Path(pymc_gpep.__file__).parents, f"{pymc_gpep.__file__} is not the installed package"

matplotlib.use("Agg")
blocks = re.findall(r"^```python\n(.*?)^```", Path("README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
assert blocks
known: dict[str, object] = {}
for block in blocks:
    exec(compile(block, "README.md", "exec"), known)
print(f"README.md: {len(blocks)} blocks of code ran")
