"""The softmax, `pm.Categorical(logit_p=...)`."""
