"""Files, directories and sockets that others write, too: whole, private and bounded."""
