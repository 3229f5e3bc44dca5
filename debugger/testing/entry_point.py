"""What the entry point `distdebug` leads to: it names the plugin, and pytest imports that.

pluggy refuses a module that is registered twice under two names. Through this detour the plugin has
one name, whether it is found by its entry point, by `-p distdebug.testing.plugin` or by both.
"""

pytest_plugins = ("distdebug.testing.plugin",)
