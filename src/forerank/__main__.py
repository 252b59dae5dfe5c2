"""``python -m forerank`` is the ``forerank`` command; ``torchrun -m forerank`` starts here."""

from forerank.cli import main

if __name__ == "__main__":
    main()
