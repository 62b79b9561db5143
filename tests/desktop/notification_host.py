"""Takes the place of the desktop's notifications on the session bus: prints each, one line."""

import gi

gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib  # noqa: E402 - its version has to be asked for first

_INTERFACE = """
<node><interface name="org.freedesktop.Notifications">
  <method name="Notify">
    <arg type="s" direction="in"/><arg type="u" direction="in"/><arg type="s" direction="in"/>
    <arg type="s" direction="in"/><arg type="s" direction="in"/><arg type="as" direction="in"/>
    <arg type="a{sv}" direction="in"/><arg type="i" direction="in"/><arg type="u" direction="out"/>
  </method>
  <method name="CloseNotification"><arg type="u" direction="in"/></method>
</interface></node>
"""


def called(_bus, _sender, _path, _interface, method, parameters, invocation) -> None:
    if method == "Notify":
        _name, _replaces, _icon, title, text, *_rest = parameters.unpack()
        print(f"note {title}: {text}".replace("\n", " / "), flush=True)
        invocation.return_value(GLib.Variant("(u)", (1,)))
    else:
        invocation.return_value(None)


def main() -> None:
    bus = Gio.bus_get_sync(Gio.BusType.SESSION, None)
    interface = Gio.DBusNodeInfo.new_for_xml(_INTERFACE).interfaces[0]
    bus.register_object("/org/freedesktop/Notifications", interface, called, None, None)
    Gio.bus_own_name_on_connection(bus, "org.freedesktop.Notifications", Gio.BusNameOwnerFlags.NONE, None, None)
    print("started", flush=True)
    GLib.MainLoop().run()


if __name__ == "__main__":
    main()
