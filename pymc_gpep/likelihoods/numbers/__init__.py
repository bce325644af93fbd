"""Real numbers by their location: `pm.Normal`, `pm.LogNormal`, `pm.Logistic`, `pm.Laplace`."""
