"""`distdebug replay`: the recorded calls of a run, made again without its program."""
