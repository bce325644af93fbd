"""Updates of the sites of every point, by method.

class_independent: EP whose sites leave the classes independent
factors: factors of a likelihood for EP and bounds with inducing inputs
label_noise: EP with label noise
qep: EP of a multinomial probit by quadrature
softmax_qep: EP of a softmax by quadrature
"""
