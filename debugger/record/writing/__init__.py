"""The writing of a rank's flight record."""
