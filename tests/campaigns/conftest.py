"""Campaigns: many attempts to break something, counted. Each test tells its counts, printed when all is done."""

from collections import Counter

import pytest

COUNTS = "counts of a campaign"


@pytest.fixture
def tell(request, record_property):
    """Take note of what a campaign counted; properties reach the summary from other processes, too."""

    def told(counts: Counter[str]) -> None:
        words = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        record_property(COUNTS, f"{request.node.name}: {words}")

    return told


def pytest_terminal_summary(terminalreporter):
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    told = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    lines = dict.fromkeys(line for name, line in told if name == COUNTS)  # each phase of a test repeats them
    if lines:
        terminalreporter.section("campaigns")
        for line in lines:
            terminalreporter.line(line)
