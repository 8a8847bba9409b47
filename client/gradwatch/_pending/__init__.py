"""Records whose numbers are on their way: what the background thread reads. No torch, no device."""
