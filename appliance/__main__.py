"""``python -m appliance``."""

from appliance.cli import main

if __name__ == "__main__":
    main()
