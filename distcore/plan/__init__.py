"""The backend of a plan: every call of a group works, and nothing goes over a wire."""
