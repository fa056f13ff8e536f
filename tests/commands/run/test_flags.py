"""`--summarize-trace`: the decisions of a run, text for text what BLIS (f90a1e3a) prints for the same options."""

import pytest

from blis_jax.run import main

ASKED = ["--profile", "blis-2026-08", "--model", "meta-llama/llama-3.1-8b-instruct"]
ASKED += ["--summarize-trace", "--trace-level", "decisions"]
REGRET = ["--counterfactual-k", "2"]
POOLS = ["--prefill-instances", "2", "--decode-instances", "2", "--pd-decider", "prefix-threshold"]
POOLS += ["--encode-instances", "1", "--encode-decider", "always", "--pd-prefix-threshold", "500"]
BUCKET = ["--admission-policy", "token-bucket", "--token-bucket-capacity", "5000"]
QUEUE = ["--flow-control", "--max-gateway-queue-depth", "5", "--saturation-detector", "concurrency"]
NO_REGRET = ["Mean Regret: 0.000000", "Max Regret: 0.000000"]
OF_ELEVEN = [
    "Total Decisions: 40",
    "  Admitted: 24",
    "  Rejected: 16",
    "Unique Targets: 11",
    "Target Distribution:",
    "  instance_0: 3",
    "  instance_1: 3",
    "  instance_10: 2",
    *(f"  instance_{number}: 2" for number in range(2, 10)),
]


def printed(capsys, words):
    assert main([*ASKED, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    return lines[lines.index("=== Trace Summary ===") + 1 :]


@pytest.mark.lenient_promotion
def test_a_router_in_turn_misses_better_instances(capsys):
    words = ["--num-instances", "11", "--num-requests", "40", "--rate", "80", *BUCKET]
    words += ["--token-bucket-refill-rate", "10000", "--routing-policy", "round-robin"]
    found = printed(capsys, [*words, *REGRET])
    assert found == [*OF_ELEVEN, "Mean Regret: 0.125000", "Max Regret: 1.000000"]
    assert printed(capsys, words) == [*OF_ELEVEN, *NO_REGRET]  # which nobody asked for
    assert main([*ASKED, *words, *REGRET, "--summarize-trace=false"]) == 0
    found = capsys.readouterr()
    assert "Trace Summary" not in found.out
    assert "--trace-level has no effect without --summarize-trace" in found.err


@pytest.mark.slow
@pytest.mark.lenient_promotion
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(
            "--num-instances 3 --num-requests 40 --rate 60 --routing-policy always-busiest "
            "--snapshot-refresh-interval 200000",
            ["40", "40", "0", "1", "instance_0: 40", "33.200000", "75.000000"],
            id="busiest, seen late",
        ),
        pytest.param(
            "--num-instances 5 --num-requests 50 --rate 40 --routing-policy round-robin "
            + " ".join(POOLS),
            [*("50", "50", "0", "2"), "instance_2: 13", "instance_3: 9", "3.090909", "8.000000"],
            id="pools, of which some requests need one",
        ),
        pytest.param(
            "--num-instances 3 --num-requests 60 --rate 60 --routing-policy round-robin "
            "--max-concurrency 2 --horizon 700000 " + " ".join(QUEUE),
            [
                *("42", "42", "0", "3", "instance_0: 2", "instance_1: 2", "instance_2: 2"),
                *("0.000000", "0.000000"),
            ],
            id="flow control up to a horizon",
        ),
        pytest.param(
            "--num-instances 3 --num-requests 40 --concurrency 6 --think-time-ms 50 "
            "--routing-policy round-robin",
            [
                *("40", "40", "0", "3", "instance_0: 14", "instance_1: 13", "instance_2: 13"),
                *("0.600000", "2.000000"),
            ],
            id="users who wait",
        ),
        pytest.param(
            "--num-instances 3 --num-requests 40 --rate 60 --routing-policy least-loaded",
            [
                *("40", "40", "0", "3", "instance_0: 14", "instance_1: 13", "instance_2: 13"),
                *("0.000000", "0.000000"),
            ],
            id="the best of all",
        ),
    ],
)
def test_decisions_are_those_of_blis(words, expected, capsys):
    names = ["Total Decisions: ", "  Admitted: ", "  Rejected: ", "Unique Targets: "]
    lines = [name + number for name, number in zip(names, expected[:4], strict=True)]
    lines += ["Target Distribution:", *(f"  {one}" for one in expected[4:-2])]
    lines += [f"Mean Regret: {expected[-2]}", f"Max Regret: {expected[-1]}"]
    assert printed(capsys, [*words.split(), *REGRET]) == lines


@pytest.mark.parametrize(
    "words",
    [
        ["--routing-policy", "power-of-two"],
        ["--routing-picker", "weighted-random", "--routing-policy", "weighted"],
    ],
)
def test_nobody_knows_the_scores_of_a_router_that_blis_lacks(words, capsys):
    assert main([*ASKED, "--num-requests", "5", *REGRET, *words]) == 3
    assert f"--counterfactual-k is not supported with {words[1]}" in capsys.readouterr().err
