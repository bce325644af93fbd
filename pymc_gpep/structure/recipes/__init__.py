"""Gaussian random variables of a model as affine functions of independent standard normals."""

from pymc_gpep.structure.recipes import areas, kronecker, normals, series  # noqa: F401  # each registers its readers
from pymc_gpep.structure.recipes.normals import unprojected
from pymc_gpep.structure.recipes.reasons import why_no_recipe, why_no_recipes
from pymc_gpep.structure.recipes.recipe import Recipe, recipe

__all__ = ["Recipe", "recipe", "unprojected", "why_no_recipe", "why_no_recipes"]
