"""Point-to-point messages: posted, matched and moved."""
