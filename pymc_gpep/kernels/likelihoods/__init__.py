"""Log probabilities of labels at many points, with derivatives in the latent values.

multinomial_probit: the multinomial probit
softmax: the softmax of one label for each point
votes: the softmax of several votes for each point
"""
