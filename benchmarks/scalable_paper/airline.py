"""Figure 5, bottom: flights that are early, on time or late, by batch fits."""

from benchmarks.scalable_paper.batches import Batched


class Airline(Batched):
    title = "Figure 5, bottom: flights (a substitute for the Airline data)"
    source = "flights"
    rivals = ("logistic", "boosting")
    rows = 241_006
    epochs = 20
    quick_method = "vi-step"
    note = (
        "The paper has 2 127 068 flights of 2008, which are not available. The data here are 251 006 flights from New "
        "York in 2017, with the same eight attributes and three classes; 10 000 rows are held out."
    )


EXPERIMENT = Airline()
