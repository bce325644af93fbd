"""Parts of iterations: acceleration, directions, descent.

anderson: Anderson acceleration of a fixed-point iteration
newton_direction: Newton direction for the mode of the latent values
energy_descent: descent on the free energy of EP, site by site
"""
