"""What a rank puts on its flight record, and how."""
