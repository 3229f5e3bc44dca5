"""pytest, whose outcomes are written as they come: `python one_file.py [pytest's arguments]`.

The ranks that a test spawns import this file again: it has nothing for them.
"""

if __name__ == "__main__":
    import sys

    from outcomes import WritesReports

    # What lies beside this file is not for the tests, which may have modules of the same names.
    del sys.modules["outcomes"]
    sys.path[0] = ""  # as `python -m pytest` has it
    import pytest

    sys.exit(pytest.main(sys.argv[1:], plugins=[WritesReports()]))
