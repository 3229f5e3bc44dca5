"""The algorithms of all collectives, written once against `transports.base`, and their choice.

`collectives` has the collectives on tensors; see there.
"""
