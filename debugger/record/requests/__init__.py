"""The requests between ranks and those outside, by files and sockets of the run directory."""
