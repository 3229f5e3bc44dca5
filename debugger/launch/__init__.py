"""From a command line to torchrun's: which arguments are ours, torchrun's and the script's."""
