"""Runtime packs: libraries that the program needs beside itself, as one file, installed into the state folder."""
