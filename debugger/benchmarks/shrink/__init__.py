"""`distdebug shrink`: from the record of a run a small program that fails as the run did."""
