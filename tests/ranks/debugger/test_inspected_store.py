"""A real store of torch's, asked by `distdebug inspect`."""

from __future__ import annotations

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from distdebug.inspection.store import Keys, keys_of, values_of


@pytest.mark.distributed(nproc=1)
def test_its_keys_are_read_and_none_is_added() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    below = PrefixStore("default_pg/0/", store)
    for name in ("cpu//0/0", "cpu//0/2", "1//cpu//0/1", "ready"):
        below.set(name, "x")
    before = store.num_keys()
    keys = keys_of("127.0.0.1", store.port)
    assert isinstance(keys, Keys), keys
    assert keys.has("ready")
    assert not keys.has("eady")
    assert keys.came() == {"": {0, 2}, "1": {1}}
    ready = "/default_pg/0//ready"
    assert values_of(keys, [ready]) == {ready: "x"}
    assert values_of(keys, ["/default_pg/0//not there"]) == {}
    assert store.num_keys() == before
