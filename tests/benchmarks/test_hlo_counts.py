"""Kernels and bytes of a scan step, read off a compiled text made by hand."""

from __future__ import annotations

import pytest

from benchmarks.gpu.hlo_counts import computations_of, count, scan_body

TEXT = """
HloModule jit_rows, is_scheduled=true

%fused_select (param_0: s32[16], param_1: s32[16]) -> s32[16] {
  %param_0 = s32[16]{0} parameter(0)
  %param_1 = s32[16]{0} parameter(1)
  ROOT %maximum.1 = s32[16]{0} maximum(%param_0, %param_1)
}

%add (a: s32[], b: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %sum = s32[] add(%a, %b)
}

%fused_reduce (param_0.1: s32[16,9,100], param_1.1: s32[16]) -> (s32[16], s32[16]) {
  %param_0.1 = s32[16,9,100]{2,1,0} parameter(0)
  %param_1.1 = s32[16]{0} parameter(1)
  %gather.1 = s32[16,100]{1,0} gather(%param_0.1, %param_1.1), offset_dims={1}
  %zero = s32[] constant(0)
  %reduce.1 = s32[16]{0} reduce(%gather.1, %zero), dimensions={1}, to_apply=%add
  ROOT %tuple.1 = (s32[16]{0}, s32[16]{0}) tuple(%reduce.1, %param_1.1)
}

%fused_scatter (param_0.2: s32[16,9,100], param_1.2: s32[16], param_2.2: s32[16,1,100]) -> s32[16,9,100] {
  %param_0.2 = s32[16,9,100]{2,1,0} parameter(0)
  %param_1.2 = s32[16]{0} parameter(1)
  %param_2.2 = s32[16,1,100]{2,1,0} parameter(2)
  ROOT %scatter.1 = s32[16,9,100]{2,1,0} scatter(%param_0.2, %param_1.2, %param_2.2), to_apply=%add
}

%inner_body (turn: (s32[16])) -> (s32[16]) {
  %turn = (s32[16]{0}) parameter(0)
  %entry = s32[16]{0} get-tuple-element(%turn), index=0
  %inner_fusion = s32[16]{0} fusion(%entry, %entry), kind=kLoop, calls=%fused_select
  ROOT %turned = (s32[16]{0}) tuple(%inner_fusion)
}

%inner_condition (turn.1: (s32[16])) -> pred[] {
  %turn.1 = (s32[16]{0}) parameter(0)
  %entry.1 = s32[16]{0} get-tuple-element(%turn.1), index=0
  ROOT %goes_on = pred[] custom-call(%entry.1), custom_call_target="any"
}

%body (carried: (s64[], s32[16], s32[16,9,100])) -> (s64[], s32[16], s32[16,9,100]) {
  %carried = (s64[], s32[16]{0}, /*index=2*/s32[16,9,100]{2,1,0}) parameter(0)
  %number = s64[] get-tuple-element(%carried), index=0
  %row = s32[16]{0} get-tuple-element(%carried), index=1
  %table = s32[16,9,100]{2,1,0} get-tuple-element(%carried), index=2
  %update = s32[16,1,100]{2,1,0} bitcast(%table)
  %select_fusion = s32[16]{0} fusion(%row, %row), kind=kLoop, calls=%fused_select
  %reduce_fusion = (s32[16]{0}, s32[16]{0}) fusion(%table, /*index=1*/%row), kind=kInput, calls=%fused_reduce
  %single = (s32[16]{0}) tuple(%select_fusion)
  %inner = (s32[16]{0}) while(%single), condition=%inner_condition, body=%inner_body
  EXTRA
  %scattered = s32[16,9,100]{2,1,0} fusion(%table, %row, %update), kind=kInput, calls=%fused_scatter
  ROOT %next = (s64[], s32[16]{0}, s32[16,9,100]{2,1,0}) tuple(%number, %select_fusion, %scattered)
}

%condition (carried.1: (s64[], s32[16], s32[16,9,100])) -> pred[] {
  %carried.1 = (s64[], s32[16]{0}, s32[16,9,100]{2,1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (argument: (s64[], s32[16], s32[16,9,100])) -> (s64[], s32[16], s32[16,9,100]) {
  %argument = (s64[], s32[16]{0}, s32[16,9,100]{2,1,0}) parameter(0)
  ROOT %loop = (s64[], s32[16]{0}, s32[16,9,100]{2,1,0}) while(%argument), condition=%condition, \
body=%body, backend_config={"known_trip_count":{"n":"64"}}
}
"""
PLAIN = TEXT.replace("  EXTRA\n", "")


def test_the_scan_is_the_loop_with_a_known_number_of_turns() -> None:
    assert scan_body(computations_of(PLAIN)) == "body"
    with pytest.raises(ValueError, match="no loop with a known number of turns"):
        scan_body(computations_of(PLAIN.replace("known_trip_count", "unknown")))


def test_kernels_are_counted_by_what_they_end_in_and_inner_loops_apart() -> None:
    found = count(PLAIN)
    assert found.kinds == {"elementwise": 1, "reduction": 1, "in-place scatter": 1}
    assert found.num_kernels == 3
    assert found.inner_kernels == 2  # body and condition
    assert found.num_table_copies == 0


def test_slices_of_a_table_count_as_the_slices() -> None:
    select = 2 * 64 + 64  # two rows of 16 read, one written
    reduce = (16 * 100 * 4 + 64) + 2 * 64  # one slice of the table and its indices, two results
    scatter = 64 + 16 * 100 * 4 + 64  # indices and updates read; the smaller of both is written
    assert count(PLAIN).kernel_bytes == [select, reduce, scatter]


def test_a_copy_of_a_table_is_seen_and_one_of_a_short_row_is_not() -> None:
    table = "%copied = s32[16,9,100]{2,1,0} copy(%table)"
    row = "%copied = s32[16]{0} copy(%row)"
    of_table, of_row = (count(TEXT.replace("EXTRA", extra)) for extra in (table, row))
    assert of_table.kinds["copy"] == of_row.kinds["copy"] == 1
    assert (of_table.num_table_copies, of_row.num_table_copies) == (1, 0)
    assert of_table.num_bytes - of_row.num_bytes == 2 * (16 * 9 * 100 - 16) * 4
