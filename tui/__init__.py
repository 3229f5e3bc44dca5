"""The terminal application: a live view of a run directory, one row per rank.

It reads what `record`, `diagnosis` and `reports` of distdebug give it, and never imports torch. A
reader thread (`feed`) makes a frozen `picture`; `screens` make lines of it; `widgets` draw lines.
"""
