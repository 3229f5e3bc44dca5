"""Programs that `distdebug bench` starts as processes of their own; each prints one JSON object."""
