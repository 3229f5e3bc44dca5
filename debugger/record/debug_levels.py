"""How much is checked: the levels of TORCH_DISTRIBUTED_DEBUG, which are ours too."""

OFF, INFO, DETAIL = LEVELS = ("OFF", "INFO", "DETAIL")
