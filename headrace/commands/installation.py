"""`headrace doctor`: what is installed, where from, and what is missing."""

import argparse
import json

from headrace.commands.doctor import examine, is_for_training


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; exit code 2 where something will not work. Where only reading was
    installed, that training is not there is no fault."""
    findings = examine()
    trains = is_for_training()
    bad = [finding for finding in findings if finding.level == "bad"]
    if arguments.json:
        told = [each._asdict() for each in findings]
        print(json.dumps({"ok": not bad, "trains": trains, "findings": told}))
        return 2 if bad else 0
    for finding in findings:
        mark = {"ok": "  ok", "note": "note", "bad": " BAD"}[finding.level]
        print(f"{mark}  {finding.topic:<18} {finding.text}")
    good = "all good" if trains else "all good for reading runs; nothing here trains"
    print(f"\n{len(bad)} thing(s) to mend" if bad else f"\n{good}")
    return 2 if bad else 0
