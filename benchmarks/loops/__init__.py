"""Training loops run for real, with what gradwatch says of them beside what is true."""
