"""Run experiments of the binary paper: `python -m benchmarks.binary_paper summary --data FOLDER`, or `all` of them."""

from benchmarks.command import run_paper

EXPERIMENTS = ("table1", "figures2_5", "figures6_8", "figures9_11", "annealing", "beyond", "summary", "tap_equations")

if __name__ == "__main__":
    run_paper("binary_paper", EXPERIMENTS, "the paper on binary classification (Nickisch and Rasmussen 2008)")
