"""Updates of the sites of every point, by method.

factors: factors of a likelihood for EP and bounds with inducing inputs
label_noise: EP with label noise
softmax_qep: EP of a softmax by quadrature
"""
