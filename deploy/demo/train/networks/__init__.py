"""Drafter networks of the recipe, one family a module, each readable top to bottom. Small and for training; the
service has its own.
"""
