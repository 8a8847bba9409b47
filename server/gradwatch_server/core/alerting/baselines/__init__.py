"""What is usual: the running statistics that every rule about a change shares."""
