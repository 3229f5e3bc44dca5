"""The logs of ranks: levels, files, how they are shown, all of them as one."""
