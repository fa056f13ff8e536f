"""A made-up folder of ServeGen data, and a cohort that may stand beside it."""

import json

HALF_HOURS = (0, 28_800, 50_400, 86_400)


def make_data(folder, *, reasons=False):
    """Seven clients, two families, two days."""
    for number in range(7):
        rows = [
            f"{start + 600 * at},{1 + number / 8 + at},{1.5 - at / 4},{('Gamma', 'Weibull')[number % 2]},"
            f"{0.5 + number / 16},{0.25 + at / 8}"
            for start in HALF_HOURS
            for at in range(3)
            if (number + at) % 3
        ]
        (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n")
        windows = {}
        for day, start in enumerate((0, 21_600, 86_400)):
            window = {
                "input_tokens": str({100 + number: 0.5, 300 + 50 * day: 0.25, 7.0: 0.25}),
                "output_tokens": str({0: 0.125, 20: 0.5, 90 + number: 0.5}),
            }
            if reasons:
                window["reason_ratio"] = json.dumps({"0.29": 0.5, "0.9": 0.25 + number / 16})
            windows[str(start)] = window
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(windows))
    return folder


COHORT = """\
cohorts:
- {id: c, population: 1, rate_fraction: 1, arrival: {process: poisson}, spike: {start_time_us: 0, duration_us: 9,
   trace_rate: 1}, input_distribution: {type: constant, params: {value: 3}}, output_distribution: {type: constant,
   params: {value: 3}}}
"""
