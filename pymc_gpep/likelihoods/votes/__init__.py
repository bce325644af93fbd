"""Votes of several classes at each point by a softmax, `pm.Multinomial`."""
