"""Training recipe of the bundled demo models: data, tokenizer, targets, drafters, evaluation and packing.

Run it with ``python -m deploy.demo.train --work DIR`` from the repository root; ``README.md`` beside this file says
what each phase does and what it costs. The recipe is a tool beside the product: nothing in ``client`` or ``services``
imports it, and it imports nothing of theirs.
"""
