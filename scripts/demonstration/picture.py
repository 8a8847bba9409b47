"""The picture in the README: what the demo printed in one act, and the run's health at its end."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType

TITLE: Final = "scripts/demo"

TEMPLATE: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    .{unique_id}-title {{
        font-size: 18px;
        font-weight: bold;
        font-family: sans-serif;
    }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})"
        clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""
"""Rich's own, but with the fonts of the reader's system: its web font would be fetched from
elsewhere each time that somebody looks at the page."""


class Picture:
    """A terminal that is drawn instead of shown."""

    def __init__(self, width: int) -> None:
        self._console = Console(
            record=True,
            file=io.StringIO(),
            width=width,
            highlight=False,
            markup=False,
            emoji=False,
            force_terminal=True,
            color_system="truecolor",
            no_color=False,
        )

    def add(self, what: RenderableType) -> None:
        """Draw below what is there."""
        self._console.print(what)

    def write(self, path: Path) -> None:
        """Write it as SVG; what was drawn until then is gone."""
        text = self._console.export_svg(title=TITLE, code_format=TEMPLATE, unique_id="demo")
        lines = [line.rstrip() for line in text.splitlines()]
        path.write_text("\n".join(line for line in lines if line) + "\n", "utf-8")
