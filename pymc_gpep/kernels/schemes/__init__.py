"""Parts of iterations: acceleration, directions, line searches."""
