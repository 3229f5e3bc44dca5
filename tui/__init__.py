"""The terminal application: a live view of a run directory, one row per rank.

It reads what `debugger.record` and `debugger.diagnosis` give it and never imports torch. Its
screens are not part of this release yet; the package exists so that its name and its place in
the import rules are fixed.
"""
