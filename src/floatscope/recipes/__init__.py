"""Recipes: what is multiplied in which format, and how the loss is scaled."""

from floatscope.recipes.catalogue import CATALOGUE as CATALOGUE
from floatscope.recipes.catalogue import recipe as recipe
from floatscope.recipes.catalogue import recipe_for as recipe_for
from floatscope.recipes.recipe import LossScaling as LossScaling
from floatscope.recipes.recipe import Recipe as Recipe
from floatscope.recipes.recipe import check_backend as check_backend
