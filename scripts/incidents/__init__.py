"""`scripts/pictures incidents`: trainings that went wrong, what was said of them, and the page."""
