"""What is remembered of the rows between batches, and what a batch's sites follow from: one file for each way."""
