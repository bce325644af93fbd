"""What a fit can be held against: importance sampling, leave-one-out, annealing."""
