"""python -m evenhand, which is also what `accelerate launch -m evenhand` starts."""

from evenhand.cli import main

if __name__ == "__main__":
    main()
