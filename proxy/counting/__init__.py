"""Counting, the pure part: the content of messages, ratios that reports teach, anchors, verdicts, evidence for windows."""
