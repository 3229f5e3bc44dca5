"""The command of a run: started below a warden, reached, interrupted, ended."""
