"""`distdebug plan`: the programs of all ranks are run on one machine, exchange nothing that is
large, and are matched afterwards, as if they had met."""
