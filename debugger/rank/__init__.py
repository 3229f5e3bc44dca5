"""The layer inside a rank: records every call, forwards it untouched, raises the verdict."""
