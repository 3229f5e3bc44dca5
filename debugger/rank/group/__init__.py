"""The group in front of torch's: what it does with calls, handles, timeouts and forks."""
