"""`python -m deploy` and the command `tandem`."""

from deploy.cli import app


def main() -> None:
    app(prog_name="tandem")


if __name__ == "__main__":
    main()
