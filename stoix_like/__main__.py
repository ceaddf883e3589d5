"""`python -m stoix_like`: the command line."""

from stoix_like.cli import main

if __name__ == "__main__":
    main()
