"""Reads a compose file on standard input with the compose-spec library; runs where that is installed."""

import sys

from compose_spec import PyCompose

composed = PyCompose.from_yaml(sys.stdin.read())
for check in ("validate", "validate_configs", "validate_networks", "validate_secrets", "validate_volumes"):
    getattr(composed, check)()
print(composed.name, len(composed.services))
