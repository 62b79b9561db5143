"""Entry of ``python main.py`` and of the frozen program. Nothing heavy is imported before the command is known."""

from appliance.cli import main

if __name__ == "__main__":
    main()
