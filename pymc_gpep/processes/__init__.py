"""Gaussian processes of a model: prior moments at any inputs."""
