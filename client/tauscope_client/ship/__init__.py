"""Checkpoint relay: streams files between two hosts that cannot see each other, through the machine it runs on.

Both ends need a POSIX shell and coreutils (`dd head sha256sum stat tail`), nothing else. No byte touches a local disk.
"""
