"""Evaluates every new checkpoint of a training run and keeps a leaderboard.

`checkpoints` finds them, `watching` evaluates them, `leaderboard` ranks what came out.
"""
