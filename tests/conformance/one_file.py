"""pytest, whose outcomes are written as they come: `python one_file.py [pytest's arguments]`.

The ranks that a test spawns import this file again: it has nothing for them.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    # The modules beside this one are not for the tests, which may have some of the same names.
    sys.path.remove(str(Path(__file__).parent))
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.conformance.outcomes import WritesReports

    sys.path.pop(0)
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]  # others have a package of this name, too
    sys.path.insert(0, "")  # as `python -m pytest` has it
    import pytest

    sys.exit(pytest.main(sys.argv[1:], plugins=[WritesReports()]))
