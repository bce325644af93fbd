"""Run experiments of the nested EP paper: `python -m benchmarks.paper figure8 --data FOLDER`, or `all` of them."""

from benchmarks.command import run_paper

EXPERIMENTS = (
    "figure1",
    "table1",
    "figures2_4",
    "figures5_6",
    "figure7",
    "table2",
    "nine_values",
    "figure8",
    "figures9_10",
    "long_chains",
    "figure11",
    "tkp_sums",
)

if __name__ == "__main__":
    run_paper("paper", EXPERIMENTS, "the nested EP paper (Riihimäki, Jylänki and Vehtari 2013)")
