"""The rules: each reads the facts and yields findings of its kinds. No rule knows another one."""
