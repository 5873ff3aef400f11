"""Rules as data: what rests on too little is off, and what can be switched off is."""

from __future__ import annotations

import pytest

from stepsight.errors import InputError
from stepsight.trace.rules import RULES, Rule, Rules


def _rule(**changed) -> Rule:
    fields = {"name": "r", "value": 2.0, "unit": "µs", "says": "", "moves": "", "off": 0.0, **changed}
    return Rule(**fields)


def test_a_rule_of_two_sources_is_off_and_physics_is_on():
    assert Rules([_rule(sources=("a", "b"))]).value("r") == 0.0
    assert Rules([_rule(sources=("a", "b", "c"))]).value("r") == 2.0
    assert Rules([_rule(physics="the clock")]).value("r") == 2.0


def test_leaving_a_source_out_may_switch_a_rule_off():
    rules = Rules([_rule(sources=("torchrec", "meta", "liplus"))])
    assert rules.resting_on("liplus_ddp_1") == ["r"]
    assert rules.resting_on("nanogpt") == []


def test_rules_are_switched_off_for_a_while():
    with RULES.without(["opaque_kernels"]):
        assert not RULES.on("opaque_kernels")
    assert RULES.on("opaque_kernels")
    with pytest.raises(InputError, match="no such rule"), RULES.without(["opaque"]):
        pass


def test_every_rule_says_what_it_rests_on():
    for rule in RULES.values():
        assert rule.unit and rule.says and rule.moves
        assert rule.sources or rule.physics or rule.rests_on
