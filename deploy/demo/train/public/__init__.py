"""A DFlash drafter for a public model: its own greedy answers to prompts made for this, and the recipe's training.

``python -m deploy.demo.train.public --target DIR --out DIR``; ``README.md`` one folder up says more.
"""
