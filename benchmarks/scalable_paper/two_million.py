"""Two million rows drawn from a model, as a substitute for the paper's two million flights."""

from benchmarks.scalable_paper.batches import Batched
from benchmarks.scalable_paper.drawn import ROWS


class TwoMillion(Batched):
    title = "Two million rows drawn from a multinomial probit"
    source = "drawn"
    quick_source = "few drawn"
    rivals = ("logistic", "boosting", "truth")
    rows = ROWS
    epochs = 2
    quick_method = "ep-sites"
    warmup = 0  # an epoch is half of all steps
    note = (
        "Eight columns, two of them irrelevant, and three classes; 10 000 further rows are held out. “The truth” is "
        "the model with the latent values of the draw."
    )


EXPERIMENT = TwoMillion()
