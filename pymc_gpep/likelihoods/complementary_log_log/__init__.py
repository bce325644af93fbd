"""Two classes by the rate of an event, `pm.Bernoulli(p=1 - pm.math.exp(-pm.math.exp(f)))`."""
