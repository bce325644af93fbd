"""Updates of the sites of every point, by method.

factors: factors of a likelihood for EP and bounds with inducing inputs, and for steps over batches
step_loops: loops over the rows of a batch
label_noise: EP with label noise
softmax_qep: EP of a softmax by quadrature
"""
