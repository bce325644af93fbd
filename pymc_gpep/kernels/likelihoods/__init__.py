"""Log probabilities of labels at many points, with derivatives in the latent values.

multinomial_probit: the multinomial probit
softmax: the softmax of one label a point
votes: the softmax of several votes a point
"""
