"""What ranks and those outside ask of each other, by files and sockets of the run directory."""
