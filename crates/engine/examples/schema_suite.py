"""Texts that models generate under the schemas of schema_suite.rs, checked by the Python package jsonschema.

    python3 schema_suite.py MINFER schemas.jsonl MODEL [TOKENS]

A text that ended by itself has to be valid; one that TOKENS cut off is counted only. Fails if a text is not valid.
"""

import collections
import json
import re
import subprocess
import sys
import tempfile

import jsonschema

minfer, schemas, model = sys.argv[1:4]
tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 160
rows = collections.Counter()
for line in open(schemas):
    case = json.loads(line)
    validator = jsonschema.Draft202012Validator(
        case["schema"], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(case["schema"], file)
        file.flush()
        for seed in range(3):
            sampling = ["--temp", "0"] if seed == 0 else ["--temp", "1.5", "--seed", str(seed)]
            command = [minfer, "run", "-m", model, "--raw", "--json-schema", file.name, "-n", str(tokens), *sampling]
            done = subprocess.run([*command, "An example, as JSON: "], capture_output=True, text=True, check=False)
            # A number that was cut off is a number too.
            if done.returncode == 0 and f"generated {tokens} tokens" in done.stderr:
                rows["cut"] += 1
                continue
            try:
                value = json.loads(done.stdout)
            except json.JSONDecodeError:
                rows["broken"] += 1
                print("broken:", case["file"], case["what"], repr(done.stdout), done.stderr[-300:])
                continue
            try:
                errors = list(validator.iter_errors(value))
            except re.error:
                rows["unchecked"] += 1  # a pattern that Python does not know
                continue
            rows["invalid" if errors else "valid"] += 1
            if errors:
                print("invalid:", case["file"], case["what"], json.dumps(case["schema"]), done.stdout)
print(model, dict(rows))
sys.exit(rows["invalid"] + rows["broken"] > 0)
