"""The screens: each makes lines out of a picture and of what the user has chosen."""
