"""Results files of any project against annotations: scores, intervals, comparisons, reports."""
