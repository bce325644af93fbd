"""Gaussian random variables of a model as affine functions of independent standard normals."""

from pymc_gpep.recipes import areas, series  # noqa: F401  # each registers its readers
from pymc_gpep.recipes.normals import unprojected
from pymc_gpep.recipes.reasons import refuse_false_densities, why_no_recipe, why_no_recipes
from pymc_gpep.recipes.recipe import Recipe, recipe

__all__ = ["Recipe", "recipe", "refuse_false_densities", "unprojected", "why_no_recipe", "why_no_recipes"]
