"""Programs that `distdebug bench` starts as processes of their own; each prints one JSON object.

`replay` has what `distdebug replay` makes of a recorded run.
"""
