"""Status codes of solvers. For every code except CONVERGED, the evidence is NaN or a warning is issued."""

CONVERGED = 0
OUT_OF_ITERATIONS = 1
NOT_POSITIVE_DEFINITE = 2
NOT_FINITE = 3
OUT_OF_MEMORY = 4
TOO_LARGE = 5
OUT_OF_DIGITS = 6
SINGULAR = 7
NOT_CONCAVE = 8
IMPROPER = 9

MESSAGES = {
    CONVERGED: "converged",
    OUT_OF_ITERATIONS: "ran out of iterations",
    NOT_POSITIVE_DEFINITE: "met a prior covariance that is not symmetric and positive semi-definite",
    NOT_FINITE: "met values that are not finite",
    OUT_OF_MEMORY: "ran out of memory",
    TOO_LARGE: "met more latent values than its max_size allows",
    SINGULAR: "needs the inverse of a singular prior covariance (a larger jitter makes the covariance invertible)",
    NOT_CONCAVE: "met a log likelihood that is not concave at the mode (expectation propagation needs no concavity)",
    IMPROPER: "met a prior factor without a finite integral (hyperparameters=['u'] excludes a variable u)",
    OUT_OF_DIGITS: "reached the limit of rounding at a very large prior variance",
}
