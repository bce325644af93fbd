"""How EP with inducing inputs takes the likelihood of a point apart: one file for each rule."""
