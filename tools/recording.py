"""Record the demo as an animated SVG: `python -m tools.recording docs/assets/demo.svg`, or `make recording`.

The demo really runs. Rich draws its lines, and every line appears when it appeared; only the spinners are left out, and the
scripted model thinks more slowly than `lash-store demo` lets it. Where nothing moves, the picture is the end of the run.
"""

from __future__ import annotations

import io
import sys
import time
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from lash_store.cli.demo.command import chosen, run
from lash_store.cli.demo.show import Terminal

COLUMNS, ROWS = 112, 34
PACE_MS = 260
HOLD_S = 12.0  # how long the end stays before it begins again
STEP_S = 0.04  # lines closer together than this appear together
LINE_HEIGHT = 24.4  # rich's own
HEAD, MARGIN = 44, 14

THEME = TerminalTheme(
    (22, 24, 33),
    (214, 219, 229),
    [
        (22, 24, 33),
        (242, 95, 92),
        (126, 211, 129),
        (240, 198, 116),
        (104, 162, 255),
        (209, 140, 255),
        (92, 207, 230),
        (214, 219, 229),
    ],
    [
        (92, 99, 112),
        (242, 95, 92),
        (126, 211, 129),
        (240, 198, 116),
        (104, 162, 255),
        (209, 140, 255),
        (92, 207, 230),
        (255, 255, 255),
    ],
)

FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 @WIDTH@ @HEIGHT@" role="img" aria-label="A recording of lash-store demo">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
.{unique_id}-title {{ font: 600 18px system-ui, sans-serif; fill: #8b93a5; }}
{styles}
@ANIMATION@
</style>
<defs>
<clipPath id="{unique_id}-window"><rect width="{terminal_width}" height="@VIEW@"/></clipPath>
{lines}
</defs>
<rect width="@WIDTH@" height="@HEIGHT@" rx="10" fill="#161821"/>
<g><circle cx="24" cy="22" r="7" fill="#f25f5c"/><circle cx="46" cy="22" r="7" fill="#f0c674"/>
<circle cx="68" cy="22" r="7" fill="#7ed381"/></g>
<text class="{unique_id}-title" x="50%" y="28" text-anchor="middle">lash-store demo</text>
<g transform="translate(@MARGIN@, @HEAD@)" clip-path="url(#{unique_id}-window)">
<g class="scroll">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
<rect class="cover" width="{terminal_width}" height="@TALL@" fill="#161821"/>
</g>
</g>
</svg>
"""


def main(target: Path) -> int:
    """Play, and write what was seen."""
    clock = Clock()
    console = Console(
        file=clock, record=True, force_terminal=True, color_system="truecolor", width=COLUMNS, markup=False, highlight=False
    )
    report = run(chosen(None, None, None), Terminal(console, spin=False), pace_ms=PACE_MS)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(animated(console, clock.moments()))
    print(f"{target}: {len(clock.lines)} lines, {report.seconds} s, {target.stat().st_size:,} bytes")
    return 0 if report.ok else 1


class Clock(io.StringIO):
    """What the console writes to: it notes when each line was finished."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[float] = []
        self._began = time.monotonic()

    def write(self, text: str) -> int:
        """Count the lines, at this moment."""
        self.lines += [time.monotonic() - self._began] * text.count("\n")
        return len(text)

    def moments(self) -> list[tuple[float, int]]:
        """When so many lines could be seen: seconds and their number, the nearly simultaneous together."""
        found = [(0.0, 0)]
        for count, at_s in enumerate(self.lines, start=1):
            if at_s - found[-1][0] < STEP_S and found[-1][1]:
                found[-1] = (found[-1][0], count)
            else:
                found.append((at_s, count))
        return found


def animated(console: Console, moments: list[tuple[float, int]]) -> str:
    """Rich's picture of all lines, behind a window that follows them."""
    width = COLUMNS * 12.2 + 2 * MARGIN
    view = ROWS * LINE_HEIGHT + 6
    texts = {
        "WIDTH": f"{width:g}",
        "HEIGHT": f"{view + HEAD + MARGIN:g}",
        "VIEW": f"{view:g}",
        "TALL": f"{(moments[-1][1] + ROWS) * LINE_HEIGHT:g}",
        "MARGIN": str(MARGIN),
        "HEAD": str(HEAD),
        "ANIMATION": animation(moments),
    }
    drawn = console.export_svg(title="lash-store demo", theme=THEME, code_format=FORMAT, unique_id="demo")
    for name, text in texts.items():
        drawn = drawn.replace(f"@{name}@", text)
    return drawn


def animation(moments: list[tuple[float, int]]) -> str:
    """Two things move, in steps: the window down the lines, and the cover over what has not happened yet."""
    whole_s = moments[-1][0] + HOLD_S
    scroll, cover = [], []
    for (at_s, count), _ in pairwise([*moments, (whole_s, 0)]):
        part = f"{at_s / whole_s * 100:.2f}%"
        scroll.append(f"{part}{{transform:translateY({-scrolled(count):g}px)}}")
        cover.append(f"{part}{{transform:translateY({count * LINE_HEIGHT + 2:g}px)}}")
    last, timing = moments[-1][1], f"{whole_s:.2f}s step-end infinite"
    return "\n".join(
        [
            f".scroll {{ transform: translateY({-scrolled(last):g}px); animation: scroll {timing}; }}",
            f".cover {{ transform: translateY({last * LINE_HEIGHT + 2:g}px); animation: cover {timing}; }}",
            "@media (prefers-reduced-motion: reduce) { .scroll, .cover { animation: none; } }",
            f"@keyframes scroll {{ {''.join(scroll)} }}",
            f"@keyframes cover {{ {''.join(cover)} }}",
        ]
    )


def scrolled(count: int) -> float:
    """How far up the lines have moved when so many are there."""
    return max(0, count - ROWS) * LINE_HEIGHT


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
