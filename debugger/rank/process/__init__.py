"""The process of a rank: how it joins, lives, fails and ends, and what it says of itself then."""
