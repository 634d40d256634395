"""Prints the table of errors at the end of a run."""

from collections.abc import Iterator

from oracle.replay import KINDS


def lines(reports) -> Iterator[str]:
    for report in reports:
        for key, row in report.user_properties:
            if key == "oracle":
                cells = (f"{row[kind]:9.1e}" if kind in row else f"{'-':>9}" for kind in KINDS)
                head = f"{row['case']:16}{row['dtype']:8}{row['implementation']:6}"
                yield head + "".join(f" {cell}" for cell in cells)


def pytest_terminal_summary(terminalreporter) -> None:
    stats = terminalreporter.stats
    table = list(
        lines([report for outcome in ("passed", "failed") for report in stats.get(outcome, ())])
    )
    if table:
        terminalreporter.section("largest error, relative to the largest value of each array")
        terminalreporter.write_line(
            f"{'case':16}{'dtype':8}{'':6}" + "".join(f" {kind:>9}" for kind in KINDS)
        )
        for line in table:
            terminalreporter.write_line(line)
