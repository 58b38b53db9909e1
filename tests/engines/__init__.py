"""Real inference engines, each in an environment of its own: set-up, start, recording, integration tests.

Nothing here is part of `make test`: see `engines.mk` and `docs/engines.md`.
"""
