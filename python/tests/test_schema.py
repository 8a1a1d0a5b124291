"""The published JSON Schema of the experiment file, against every experiment and against mistakes."""

import json
import subprocess
import tomllib

import jsonschema
import pytest

from conftest import ROOT, SPEC

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.toml"))


@pytest.fixture(scope="module")
def validator():
    schema = json.loads((ROOT / "experiments/experiment.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def test_the_program_prints_the_schema_that_is_published(program):
    printed = subprocess.run([program, "lab", "schema"], check=True, capture_output=True, text=True).stdout
    assert printed == (ROOT / "experiments/experiment.schema.json").read_text()


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_fits_the_schema(validator, path):
    found = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(tomllib.loads(path.read_text()))]
    assert found == []


MISTAKES = {
    "an unknown key at the top": {"durations": "1s"},
    "a time without a unit": {"duration": "1"},
    "a negative count": {"repeats": -1},
    "an unknown key of a flow": {"flows": {"measured": {"form": "a"}}},
    "an unknown unit": {"links": {"path": {"rate": "5Mbyte"}}},
    "an unknown discipline": {"links": {"path": {"queue": {"discipline": "fifo"}}}},
    "a link with one end": {"links": {"path": {"between": ["a"]}}},
    "an unknown tunable": {"cc": {"lf_highspeed": {"unknown": 1}}},
    "an axis without values": {"sweep": {"rtt": {"set": "links.path.delay"}}},
    "an unknown metric": {"expect": [{"at_most": 1, "left": {"metric": "goodput"}}]},
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_found(validator, mistake):
    assert list(validator.iter_errors(tomllib.loads(SPEC))) == []
    assert list(validator.iter_errors({**tomllib.loads(SPEC), **mistake})) != []
