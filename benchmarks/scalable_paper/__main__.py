"""Run experiments of the scalable EP paper: `python -m benchmarks.scalable_paper table2 --data FOLDER`, or `all`."""

from benchmarks.command import run_paper

EXPERIMENTS = (
    "table2", "figure1", "figure3", "figure4", "figure5", "overfitting", "kept_back", "mnist", "cavities", "airline",
    "two_million", "usps",
)  # fmt: skip

if __name__ == "__main__":
    run_paper("scalable_paper", EXPERIMENTS, "the scalable EP paper (Villacampa-Calvo and Hernández-Lobato 2017)")
