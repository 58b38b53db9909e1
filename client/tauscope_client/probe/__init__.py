"""Diagnosis of a drafter: the same references drafted under systematically changed conditions.

A healthy drafter does best under the condition it declares. When another condition wins clearly (taps one layer
higher, a context that includes the anchor's own state, another rope base), that is the likely fault.
"""
