"""torch's ProcessGroup as distcore has it: every call checked, named, and handed to an engine."""
