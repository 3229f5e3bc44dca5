"""The one place that names torch's insides: what is not as known is left alone, see `probe`."""
