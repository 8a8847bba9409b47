"""Tools for coding assistants at `/mcp`, by the Model Context Protocol: short answers of HTTP."""
