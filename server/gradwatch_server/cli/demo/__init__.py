"""Demo: a training that is broken twice, in processes of its own, and what gradwatch says of it."""
