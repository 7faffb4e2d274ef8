"""`headrace doctor`: what is installed, where from, and what is missing."""

import argparse
import json

from headrace.commands.doctor import examine


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; exit code 2 where something will not work."""
    findings = examine()
    bad = [finding for finding in findings if finding.level == "bad"]
    if arguments.json:
        print(json.dumps({"ok": not bad, "findings": [each._asdict() for each in findings]}))
        return 2 if bad else 0
    for finding in findings:
        mark = {"ok": "  ok", "note": "note", "bad": " BAD"}[finding.level]
        print(f"{mark}  {finding.topic:<18} {finding.text}")
    print(f"\n{len(bad)} thing(s) to mend" if bad else "\nall good")
    return 2 if bad else 0
