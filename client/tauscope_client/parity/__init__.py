"""Compares a golden capture of another machine with the running target service, plane by plane, and says why.

Pure numpy over what `tauscope-target golden` wrote and what the service answers.
"""
