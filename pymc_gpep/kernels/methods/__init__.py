"""Updates of the sites of every point, by method.

factors: likelihood factors for EP and for variational bounds, with inducing inputs or in batches
step_loops: loops over the rows of a batch
label_noise: EP with label noise
softmax_qep: EP of a softmax by quadrature
energy_descent: descent on the free energy of EP
"""
