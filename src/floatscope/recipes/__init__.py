"""Recipes: what is multiplied in which format, how the loss is scaled, and the step that does it."""

from floatscope.recipes.catalogue import CATALOGUE as CATALOGUE
from floatscope.recipes.catalogue import recipe as recipe
from floatscope.recipes.catalogue import recipe_for as recipe_for
from floatscope.recipes.recipe import LossScaling as LossScaling
from floatscope.recipes.recipe import Recipe as Recipe
