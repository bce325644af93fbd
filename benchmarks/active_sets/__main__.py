"""Run experiments of the active-set papers: `python -m benchmarks.active_sets toy --data FOLDER`, or `all` of them."""

from benchmarks.command import run_paper

EXPERIMENTS = (
    "toy",
    "alpha",
    "sparse_toy",
    "isolet",
    "even_digits",
    "table1",
    "surfaces",
    "all_rows",
    "recovery",
    "table2",
    "constants",
)

if __name__ == "__main__":
    run_paper("active_sets", EXPERIMENTS, "Girolami and Rogers (2006) and Seeger and Jordan (2004)")
