"""Gaussian variables of a model as affine functions of independent standard normals.

recipe: recipes and fields of random variables, and roots of covariances
normals: multivariate normal, zero-sum, Kronecker products
series: random walks and autoregressive series
areas: conditional autoregressions over areas
sparse_normal: multivariate normal with a sparse precision, as a PyMC distribution
reasons: messages for variables without a recipe
"""

from pymc_gpep.recipes import areas, series  # noqa: F401  # each registers its readers
from pymc_gpep.recipes.normals import unprojected
from pymc_gpep.recipes.reasons import why_no_recipe, why_no_recipes
from pymc_gpep.recipes.recipe import Recipe, recipe

__all__ = ["Recipe", "recipe", "unprojected", "why_no_recipe", "why_no_recipes"]
