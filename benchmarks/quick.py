"""Run the experiments of all papers in their quick forms: `python -m benchmarks.quick --data FOLDER --jobs 1`.

All papers share one process, which imports PyMC, reads kernels and rewrites graphs once.
"""

import gc
import runpy
import sys

PAPERS = ("paper", "binary_paper", "active_sets", "scalable_paper")

if __name__ == "__main__":
    given = sys.argv[1:]
    for paper in PAPERS:
        # most pieces of this paper are timed, and run one at a time
        jobs = ["--jobs", "1"] if paper == "scalable_paper" else []
        sys.argv = [sys.argv[0], "all", "--quick", *given, *jobs]
        runpy.run_module(f"benchmarks.{paper}", run_name="__main__")
        gc.collect()
        gc.freeze()  # excludes modules and stored graphs from later garbage collections
